"""What the calls of an op case do: torch's operators, kernels and Triton launches, in order.

Runs in the measured process. Where both arms do the same work, their results agree whatever it is
worth, and nothing was compared. Names and wrappers say nothing of that, so the work itself is read:
on CUDA the kernels with their grids, elsewhere the operators with their shapes and options, and the
launches of Triton. Views, allocations and operators that only call others are no work. A candidate
that does the reference's work and some of its own beside is compared: the work beside might be what
it is for, and if it is for nothing it costs time and ships nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any
from unittest import mock

import torch
from torch.autograd.profiler import profile

from experiments.parity.op_run import Call, Tensors
from experiments.values import digest_of
from levers.base import OpCase

NO_WORK = frozenset(
    {
        *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"),
        *("new_empty_strided", "resize_", "set_", "_local_scalar_dense", "record_stream"),
        *("lift_fresh", "_unsafe_view"),
    }
)
"""Operators of ``aten`` beside its views that write no element, or hand one number to the host."""

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
OPERATOR = "cpu_op"
"""Categories of a trace's events."""

GRAPH = "GraphLaunch"
"""In the name of the call that replays a captured graph; its kernels carry its correlation."""

INTERPRETED = "InterpretedFunction"

MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Work:
    """What one call did.

    Attributes:
        done: kernels and copies where there are any, else operators, in order.
        launches: Triton's, with their options and all arguments that are no tensors.
    """

    done: tuple[str, ...]
    launches: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of all that was done and launched; empty where nothing was seen."""
        return digest_of("\n".join((*self.done, *self.launches))) if self.names else ""

    @property
    def names(self) -> tuple[str, ...]:
        """Of what was done, and launched where nothing else shows it."""
        return tuple(one.partition(" ")[0] for one in self.done or self.launches)


def same(case: OpCase, inputs: Tensors) -> str:
    """Why nothing is compared between the arms on these inputs, in words; empty where something is.

    What cannot be seen (a call into a library of the lever's own, on a CPU) is taken to differ.
    """
    if same_callable(case.reference, case.candidate):
        return "both arms are one callable"
    reference = work_of(case, case.reference, inputs)
    if not reference.names or work_of(case, case.candidate, inputs) != reference:
        return ""
    names, more = reference.names, len(reference.names) - MOST_SHOWN
    shown = ", ".join(names[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"both arms do the same work ({shown})"


def same_callable(one: Call, other: Call) -> bool:
    """Whether two calls are one object, or one function with the same things bound to it."""
    if one is other:
        return True
    if isinstance(one, functools.partial) and isinstance(other, functools.partial):
        bound = _all_same(one.args, other.args) and one.keywords.keys() == other.keywords.keys()
        named = (_same(one.keywords[name], other.keywords[name]) for name in one.keywords)
        return bound and same_callable(one.func, other.func) and all(named)
    if isinstance(one, MethodType) and isinstance(other, MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    return False


def _all_same(ones: Sequence[object], others: Sequence[object]) -> bool:
    return len(ones) == len(others) and all(map(_same, ones, others))


def _same(one: object, other: object) -> bool:
    """The same object, or the same number or word; tensors are not looked into."""
    plain = isinstance(one, str | int | float) and type(one) is type(other)
    return one is other or (plain and one == other)


def work_of(case: OpCase, call: Call, inputs: Tensors) -> Work:
    """What one call does, in order."""
    outputs = case.outputs(inputs)
    return watched(lambda: call(inputs, outputs))


def watched(call: Callable[[], object]) -> Work:
    """What a call does, in order; it is made once."""
    launches: list[str] = []
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.synchronize()
    device = "cuda" if on_cuda else None
    with launching(launches), profile(use_device=device, record_shapes=True) as seen:
        call()
        if on_cuda:
            torch.cuda.synchronize()
    events = _events(seen)
    replayed = {_correlation(one) for one in events if GRAPH in one["name"]}
    kernels = [
        _kernel(one, replayed=_correlation(one) in replayed)
        for one in events
        if one.get("cat") in ON_DEVICE
    ]
    operators = (one for one in events if one.get("cat") == OPERATOR and _is_work(one["name"]))
    return Work(tuple(kernels) or tuple(map(_operator, operators)), tuple(launches))


def _events(seen: profile) -> list[dict[str, Any]]:
    """The trace's complete events in the order of their beginnings."""
    with tempfile.TemporaryDirectory(prefix="levergate-") as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))  # type: ignore[no-untyped-call]
        found = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sorted((one for one in found if one.get("ph") == "X"), key=lambda one: one["ts"])


def _correlation(event: dict[str, Any]) -> object:
    return event.get("args", {}).get("correlation")


def _kernel(event: dict[str, Any], *, replayed: bool) -> str:
    """A kernel or copy with its grid; one that a graph replays is launched in another way."""
    said = event.get("args", {})
    named = (event["name"], said.get("grid"), said.get("block"), said.get("bytes", ""))
    return " ".join(map(str, named)) + (" replayed" if replayed else "")


def _operator(event: dict[str, Any]) -> str:
    said = event.get("args", {})
    named = (
        said.get(key) for key in ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
    )
    return f"{event['name']} {' '.join(map(str, named))}"


@functools.cache
def _is_work(name: str) -> bool:
    """Whether an operator does something itself; one that is no torch operator may."""
    operator = name.removeprefix("aten::")
    if "::" in operator:
        return True
    if operator in NO_WORK:
        return False
    packet = getattr(torch.ops.aten, operator, None)
    overloads = [getattr(packet, one) for one in packet.overloads()] if packet else []
    return not any(one.is_view or _only_calls_others(one.name()) for one in overloads)


def _only_calls_others(operator: str) -> bool:
    if not torch._C._dispatch_has_kernel(operator):
        return False
    key = "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, key))


@contextlib.contextmanager
def launching(launches: list[str]) -> Iterator[None]:
    """Note each launch of a Triton kernel, compiled or interpreted."""
    kinds = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", INTERPRETED))
    with contextlib.ExitStack() as patches:
        for module, name in kinds:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None:
                patches.enter_context(mock.patch.object(kind, "run", _noting(kind.run, launches)))
        yield


def _noting(run: Callable[..., Any], launches: list[str]) -> Callable[..., Any]:
    def noting(self: Any, *arguments: Any, **named: Any) -> Any:
        said = [*arguments, *(f"{name}={_argument(named[name])}" for name in sorted(named))]
        launches.append(f"{self.fn.__name__} {', '.join(map(_argument, said))}")
        return run(self, *arguments, **named)

    return noting


def _argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.stride()} {value.dtype}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_argument, value))})"
    plain = isinstance(value, str | int | float | None | torch.dtype)
    return str(value) if plain else type(value).__name__
