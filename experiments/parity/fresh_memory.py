"""Whether an output hangs on what fresh memory happened to hold.

Every tensor that is allocated without a value while a call runs is filled: once with bytes of ones
(NaN in each float format, -1 in each signed integer), once with a finite pattern. A call that reads
what nobody wrote then shows other outputs, unless what it read reaches none. Tensors that a library
allocates below PyTorch's dispatcher are not filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.parity import compare
from experiments.parity.op_run import Call, Tensors
from levers.base import OpCase

PATTERNS = (0xFF, 0x4B)
"""Bytes: NaN, and 1.3e7 in bf16 and fp32, 14.6 in fp16."""

PLAIN_RUNS = 3

UNSTEADY = 4.0
"""A call that does not repeat itself may be so many times as far from its filled run as its plain
runs are from each other, or as one rounding of each element: what such patterns reach by arithmetic
is NaN or many orders of magnitude away, and distances of random orders of a sum scatter less."""

_EMPTY = frozenset(
    {
        torch.ops.aten.empty,
        torch.ops.aten.empty_like,
        torch.ops.aten.empty_permuted,
        torch.ops.aten.empty_strided,
        torch.ops.aten.new_empty,
        torch.ops.aten.new_empty_strided,
    }
)


class Filled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fills what is allocated without a value; ``tensors`` counts how many that were."""

    def __init__(self, byte: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.byte = byte
        self.tensors = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The operator's own result, filled where it has no value."""
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket in _EMPTY:
            found.untyped_storage().fill_(self.byte)
            self.tensors += 1
        return found


def faults(cases: Sequence[OpCase], seed: int) -> tuple[str, ...]:
    """The outputs of candidates that hang on fresh memory, in words; empty if none does."""
    return tuple(
        f"{case.name}: output {number} changes with what fresh memory holds"
        for case in cases
        for inputs in (case.inputs(seed),)
        for number in _hanging(case.candidate, inputs, partial(case.outputs, inputs))
    )


def has_power(device: str) -> bool:
    """Whether calls that do hang on fresh memory are found, eagerly and in a backward."""
    given = torch.ones(64, device=device)
    return all(
        list(_hanging(call, (given,), lambda: (torch.empty_like(given),)))
        for call in (_reads_forward, _reads_backward)
    )


def _hanging(call: Call, inputs: Tensors, fresh: Callable[[], Tensors]) -> Iterator[int]:
    """The numbers of the outputs that hang on fresh memory; ``fresh`` gives unwritten outputs."""
    plain = [_called(call, inputs, fresh(), nullcontext()) for _ in range(PLAIN_RUNS)]
    for byte in PATTERNS:
        outputs = _called(call, inputs, fresh(), Filled(byte))
        apart = [n for n, filled in enumerate(outputs) if _differs([p[n] for p in plain], filled)]
        if apart:
            yield from apart
            return


def _called(
    call: Call, inputs: Tensors, outputs: Tensors, mode: AbstractContextManager[Any]
) -> Tensors:
    for output in outputs:
        compare.poison(output, finite=False)
    with mode:
        call(inputs, outputs)
    return outputs


def _differs(plain: Sequence[Tensor], filled: Tensor) -> bool:
    """Whether the filled run is further from a plain one than rounding and scatter allow."""
    if any(compare.bit_equal(one, filled) for one in plain):
        return False
    first = plain[0]
    if not first.is_floating_point() or not torch.equal(first.isfinite(), filled.isfinite()):
        return True
    scatter = max(_distance(first, one) for one in plain)
    rounding = torch.finfo(first.dtype).eps * _distance(first, torch.zeros_like(first))
    return _distance(first, filled) > UNSTEADY * max(scatter, rounding)


def _distance(one: Tensor, other: Tensor) -> float:
    finite = torch.isfinite(one)
    return float((one[finite].double() - other[finite].double()).norm())


def _reads_forward(inputs: Tensors, outputs: Tensors) -> None:
    outputs[0].copy_(inputs[0] + 0 * torch.empty_like(inputs[0]))


def _reads_backward(inputs: Tensors, outputs: Tensors) -> None:
    leaf = inputs[0].clone().requires_grad_()
    _Unwritten.apply(leaf).sum().backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    outputs[0].copy_(leaf.grad)


class _Unwritten(torch.autograd.Function):
    """Its gradient is added to memory that nobody wrote, times nothing."""

    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        return given * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient + 0 * torch.empty(gradient.shape, device=gradient.device)
