"""Whether an output hangs on what fresh memory happened to hold.

Every tensor that is allocated without a value while a call runs is filled: with bytes of ones (NaN
in each float format, -1 in each signed integer), with finite patterns, and with zeros, which the
others are compared with: memory as it comes may hold what an earlier run left. A call that reads
what nobody wrote then shows other outputs, unless what it read reaches none. Ones come first, and
outputs that are NaN there count by themselves: scratch that a call keeps is allocated only once.
Tensors that a library allocates below PyTorch's dispatcher are not filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.parity import compare
from experiments.parity.op_run import Call, Tensors, mask_of
from levers.base import OpCase

ONES, ZEROS = 0xFF, 0x00
FINITE = (0x4B, 0xCB)
"""Bytes: 1.3e7 in bf16 and fp32, 14.6 in fp16, and the same below zero (a minimum ignores NaN)."""

ZERO_RUNS = 3

UNSTEADY = 4.0
"""A call that does not repeat itself may be so many times as far from its filled run as its runs
on zeros are from each other, or as one rounding of each element: what such patterns reach by
arithmetic is NaN or many orders of magnitude away, and distances of random orders of a sum scatter
less."""

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
        grown = func.overloadpacket is torch.ops.aten.resize_
        had = args[0].untyped_storage().nbytes() if grown else 0
        found = func(*args, **(kwargs or {}))
        if grown or func.overloadpacket in _EMPTY:
            _all_bytes(found)[had:].fill_(self.byte)
            self.tensors += 1
        return found


def _all_bytes(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)


def faults(cases: Sequence[OpCase], seed: int) -> tuple[str, ...]:
    """The outputs of candidates that hang on fresh memory, in words; empty if none does."""
    return tuple(
        f"{case.name}: output {number} changes with what fresh memory holds"
        for case in cases
        for inputs in (case.inputs(seed),)
        for masks in (case.masks(inputs) if case.masks else None,)
        for number in _hanging(case.candidate, inputs, partial(case.outputs, inputs), masks)
    )


def has_power(device: str) -> bool:
    """Whether calls that do hang on fresh memory are found, eagerly and in a backward."""
    given = torch.ones(64, device=device)
    return all(
        list(_hanging(call, (given,), lambda: (torch.empty_like(given),)))
        for call in (_reads_forward, _reads_backward)
    )


def _hanging(
    call: Call, inputs: Tensors, fresh: Callable[[], Tensors], masks: Tensors | None = None
) -> Iterator[int]:
    """The numbers of the outputs that hang on fresh memory; ``fresh`` gives unwritten outputs."""
    ones = _called(call, inputs, fresh(), ONES)
    zeros = [_called(call, inputs, fresh(), ZEROS) for _ in range(ZERO_RUNS)]
    finite = [_called(call, inputs, fresh(), byte) for byte in FINITE]
    for number, output in enumerate(ones):
        wrong = bool(compare.wrongly_nonfinite(output, mask_of(masks, number)).any())
        same = [one[number] for one in zeros]
        if wrong or any(_differs(same, filled[number]) for filled in (ones, *finite)):
            yield number


def _called(call: Call, inputs: Tensors, outputs: Tensors, byte: int) -> Tensors:
    for output in outputs:
        compare.poison(output, finite=False)
    with Filled(byte):
        call(inputs, outputs)
    return outputs


def _differs(zeros: Sequence[Tensor], filled: Tensor) -> bool:
    """Whether the filled run is further from one on zeros than rounding and scatter allow."""
    if any(compare.bit_equal(one, filled) for one in zeros):
        return False
    first = zeros[0]
    if not first.is_floating_point() or not torch.equal(first.isfinite(), filled.isfinite()):
        return True
    scatter = max(_distance(first, one) for one in zeros)
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
