"""Matrix products by cuBLASLt with a chosen epilogue and a measured algorithm.

Which algorithm runs is decided once for each problem, the first time it is run: the heuristic's
proposals each run a few times in turn, and the fastest is kept. Problems that differ in the number
of packed rows alone share a choice up to :data:`.cublaslt_plan.ROW_STEP` rows, and processes of one
arm share it through :mod:`.cublaslt_choices`. Sums that are split
over k are allowed where the parts are kept in fp32; schemes that add rounded parts are not.

The products run on the caller's stream, so they can be captured in a graph, once each problem has
been run before.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from levers.errors import BadParameter
from levers.kernels.cublaslt_abi import Algorithm, Heuristic, Kind, Refused, loaded_library
from levers.kernels.cublaslt_choices import Choices, folder_of
from levers.kernels.cublaslt_plan import WORKSPACE_BYTES, Operands, Plan, Problem
from levers.kernels.cublaslt_tuning import best, device_us, interleaved_us, put_under_load

CANDIDATES = 12
"""How many of the heuristic's proposals are measured; it sorts them by its own estimate."""

PLANS = 1024
"""Problems whose descriptors are kept; packed samples of new lengths are a new problem."""

ALIGNMENT_BYTES = 256
"""Of an operand's address: what the heuristic takes for granted. PyTorch allocates on 512."""

KINDS = {torch.float32: Kind.FP32, torch.float16: Kind.FP16, torch.bfloat16: Kind.BF16}


def raw_stream(device: int) -> int:
    """The handle of the current stream; what Triton's launcher asks for as well."""
    return int(torch._C._cuda_getCurrentRawStream(device))


class CublasLt:
    """One device's handle, workspaces, plans and choices.

    Attributes:
        winners: what was chosen, by problem, in words.
        tunings: how many candidates have been measured so far.
    """

    def __init__(self, device: int) -> None:
        self.device, self.library = device, loaded_library()
        self.handle = ctypes.c_void_p()
        with torch.cuda.device(device):
            self.library.call("Create", f"cuda:{device}", ctypes.byref(self.handle))
        stack = f"{torch.cuda.get_device_name(device)} cuBLASLt {self.library.version}"
        self.choices = Choices(folder_of(os.environ), stack)
        self.winners: dict[str, str] = {}
        self.tunings = 0
        self._chosen: dict[Problem, Algorithm] = {}
        self._plans: OrderedDict[Problem, Plan] = OrderedDict()
        self._workspaces: dict[int, Tensor] = {}
        self._lock = threading.RLock()

    def run(self, problem: Problem, operands: Operands) -> None:
        """Write the product (and what the epilogue writes beside it).

        Raises:
            Refused: the library has no algorithm for the problem, or fails to launch it.
            BadParameter: a problem that is new is run while a graph is captured.
        """
        if torch.cuda.current_device() == self.device:
            self._run(problem, operands)
            return
        with torch.cuda.device(self.device):
            self._run(problem, operands)

    def _run(self, problem: Problem, operands: Operands) -> None:
        """The same on the current device; a plan's pointers and its launch are one step."""
        with self._lock:
            plan = self._plan(problem)
            plan.point(operands)
            if plan.chosen is None:
                plan.chosen = ctypes.byref(self._algorithm(plan, operands))
            self._launch(plan, operands, plan.chosen)

    def measured(
        self, problem: Problem, operands: Operands, count: int = CANDIDATES
    ) -> list[tuple[str, float]]:
        """Each proposal in words with its microseconds, the heuristic's own first."""
        with self._lock, torch.cuda.device(self.device):
            plan = self._plan(problem)
            plan.point(operands)
            proposals, times_us = self._timed(plan, operands, count)
            names = [plan.describe(one.algorithm) for one in proposals]
            return list(zip(names, times_us, strict=True))

    def _launch(self, plan: Plan, operands: Operands, algorithm: Any) -> None:
        """Run a plan whose pointers are set by one algorithm, on the caller's stream."""
        stream = raw_stream(self.device)
        plan.launch(self.handle, operands, algorithm, self._workspace(stream), stream)

    def _plan(self, problem: Problem) -> Plan:
        plan = self._plans.get(problem)
        if plan is None:
            plan = self._plans[problem] = Plan(self.library, problem)
            if len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(problem)
        return plan

    def _workspace(self, stream: int) -> Tensor:
        """Scratch of a stream: products on one stream follow each other and may share it."""
        found = self._workspaces.get(stream)
        if found is None:
            found = self._workspaces[stream] = torch.empty(
                WORKSPACE_BYTES, dtype=torch.uint8, device=f"cuda:{self.device}"
            )
        return found

    def _algorithm(self, plan: Plan, operands: Operands) -> Algorithm:
        shared = plan.problem.shared
        known = self._chosen.get(shared) or self.choices.find(str(shared))
        if known is None or not plan.takes(self.handle, known):
            known = self._measured_best(plan, operands)
        self._chosen[shared] = known
        self.winners[str(shared)] = plan.describe(known)
        return known

    def _measured_best(self, plan: Plan, operands: Operands) -> Algorithm:
        """The fastest proposal, or what another process chose for it first.

        Raises:
            BadParameter: a graph is being captured.
        """
        if torch.cuda.is_current_stream_capturing():
            raise BadParameter(
                f"cuBLASLt has not yet run {plan.problem}, and a graph is being captured",
                cure="run the step once before the capture, so that its algorithms are chosen",
            )
        proposals, times_us = self._timed(plan, operands, CANDIDATES)
        fastest: Algorithm = proposals[best(times_us)].algorithm
        kept = self.choices.keep(str(plan.problem.shared), fastest)
        return kept if plan.takes(self.handle, kept) else fastest

    def _timed(
        self, plan: Plan, operands: Operands, count: int
    ) -> tuple[list[Heuristic], list[float]]:
        """The proposals that run, with their microseconds.

        Raises:
            Refused: none of them does.
        """
        proposals, refused = [], None
        for one in plan.candidates(self.handle, count):
            try:
                self._launch(plan, operands, ctypes.byref(one.algorithm))
            except Refused as error:
                refused = error
            else:
                proposals.append(one)
        if not proposals and refused is not None:
            raise refused
        calls = [self._call(plan, operands, one.algorithm) for one in proposals]
        self.tunings += len(calls)
        put_under_load(calls[0], device_us)
        return proposals, interleaved_us(calls, device_us)

    def _call(self, plan: Plan, operands: Operands, algorithm: Algorithm) -> Callable[[], None]:
        return functools.partial(self._launch, plan, operands, ctypes.byref(algorithm))


class Devices:
    """One :class:`CublasLt` for each device, made when it is first asked for."""

    def __init__(self, make: Callable[[int], CublasLt] = CublasLt) -> None:
        self._make = make
        self._made: dict[int, CublasLt] = {}

    def at(self, index: int) -> CublasLt:
        """The device's own."""
        found = self._made.get(index)
        if found is None:
            found = self._made[index] = self._make(index)
        return found

    def winners(self) -> dict[str, str]:
        """What was chosen so far on any device, by problem."""
        return {
            f"cublaslt[{problem}]": winner
            for one in self._made.values()
            for problem, winner in one.winners.items()
        }

    def tunings(self) -> int:
        """How many candidates have been measured so far."""
        return sum(one.tunings for one in self._made.values())


DEVICES = Devices()
"""The process's; what it holds is what the library and the choices of algorithms are."""


def operand(tensor: Tensor) -> Tensor:
    """The tensor as the library takes it: dense rows from an aligned address, copied if need be."""
    if tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT_BYTES == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)
