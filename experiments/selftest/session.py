"""The torch half of the self-test's workload, inside one measured process."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from experiments.selftest.launches import BEYOND_ANY_MACHINE, Product, contiguous, read_rows
from experiments.selftest.workload import LAYOUT, MEMORY, PRODUCT, RATE, READ, STEP
from experiments.tasks import Measurement, Outputs
from experiments.values import Scalar, digest_of
from experiments.workloads.base import unpaced
from levers.base import Site

ORACLE_COST = 1.1
"""The oracle is 10 % slower than the reference on the virtual clock: the axis then passes."""


STEPS_A_TURN = 50
"""Timed steps between two turns: some hundredths of a second."""


class SelftestSession:
    """One product, its layout and its read-out; see :class:`experiments.workloads.base.Session`."""

    def __init__(
        self, parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        size = int(parameters["size"] or 1)
        self._parameters = parameters
        self._x_NN = torch.randn(size, size, generator=generator, device=device)
        self._y_NN = torch.randn(size, size, generator=generator, device=device)
        if parameters["inputs"] == "nan":
            self._x_NN[0, 0] = float("nan")
        self._z_NN = torch.empty(size, size)
        self._out_F = torch.empty(size * size)
        huge = parameters["scratch"] == "huge"
        product = Product(scratch_bytes=BEYOND_ANY_MACHINE) if huge else Product()
        self._cost = ORACLE_COST if implementation.startswith("oracle:") else 1.0
        self._mode = implementation.replace("oracle:", "eager-")
        self.pace: Callable[[], None] = unpaced
        self.sites: Mapping[str, Site] = {
            PRODUCT: Site(PRODUCT, product),
            LAYOUT: Site(LAYOUT, contiguous),
            READ: Site(READ, read_rows),
        }

    def warm_up(self) -> None:
        """Touch all memory."""
        for _ in range(3):
            self._step()

    def measure(self) -> Measurement:
        """The shortest step stands for all: what else the machine did only lengthens some."""
        product = self.sites[PRODUCT].launch
        asked = int(self._parameters["steps"] or 1)
        limit = getattr(product, "steps", None)
        times_s = self._paced(asked if limit is None else min(limit, asked))
        virtual = self._parameters["clock"] == "virtual"
        step_s = statistics.median(times_s) if virtual else min(times_s)
        return Measurement(
            values={
                RATE: 1 / step_s,
                STEP: step_s * 1e3,
                MEMORY: float(getattr(product, "scratch_bytes", 1)),
            },
            raw={"step_s": times_s},
            inputs_digest=self._inputs_digest(),
            outputs_count=len(times_s),
            facts={"oracle_mode": self._mode} if self._mode != "engine" else {},
        )

    def exercise(self) -> None:
        """One step, with each plan told to its site."""
        plans = self._step()
        for name, plan in plans.items():
            for axis in (RATE, STEP, MEMORY):
                self.sites[name].observe(axis, plan)

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        """The read-out and the product, by digest."""
        del arguments
        self._step()
        found = {"read": self._out_F, "product": self._z_NN}
        return Outputs(
            digests={name: digest_of(one.numpy().tobytes()) for name, one in found.items()},
            nonfinite={name: int((~one.isfinite()).sum()) for name, one in found.items()},
            inputs_digest=self._inputs_digest(),
        )

    def _step(self) -> dict[str, str]:
        """Product, layout, read-out; the plan of each."""
        product = self.sites[PRODUCT].launch(self._x_NN, self._y_NN, self._z_NN)
        laid_out, layout = self.sites[LAYOUT].launch(self._z_NN)
        read = self.sites[READ].launch(laid_out, self._out_F)
        return {PRODUCT: product, LAYOUT: layout, READ: read}

    def _paced(self, steps: int) -> tuple[float, ...]:
        """The times of so many steps, in turns with the pair's other process."""
        times_s = []
        for number in range(steps):
            if number % STEPS_A_TURN == 0:
                self.pace()
            times_s.append(self._timed())
        return tuple(times_s)

    def _timed(self) -> float:
        """Seconds of one step by the clock that was asked for."""
        start = time.perf_counter()
        self._step()
        if self._parameters["clock"] == "wall":
            return time.perf_counter() - start
        cost = self._cost * float(getattr(self.sites[PRODUCT].launch, "cost", 1.0))
        noise = float(self._parameters["noise"] or 0)
        return cost * 1e-3 * random.SystemRandom().gauss(1.0, noise)

    def _inputs_digest(self) -> str:
        both: tuple[Tensor, Tensor] = (self._x_NN, self._y_NN)
        return digest_of(" ".join(digest_of(one.numpy().tobytes()) for one in both))


def open_session(
    parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
) -> SelftestSession:
    """Draw the inputs; no timed work."""
    return SelftestSession(parameters, device, seed, implementation)
