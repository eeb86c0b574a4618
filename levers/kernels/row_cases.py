"""The cases of the op check of the fused row operations: forward and backward against fp64.

A case's inputs are the operation's tensors, the gradient of its result ``[N, C]`` and
``cu_seqlens [B + 1]``. Truth is the original formula on the same inputs in fp64, its gradients by
autograd. The original's result is rounded to the next Linear's dtype, as that Linear does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from levers.base import OpCase
from levers.kernels.segment_sum_cases import CUDA_CHANNELS, LENGTHS, CutByOffsets

Tensors = tuple[Tensor, ...]
Call = Callable[[Tensors, CutByOffsets, torch.dtype], Tensor]
"""Tensors of the operation, segments and the result's dtype to the result ``[N, C]``."""

CPU_CHANNELS = 64
CPU_LENGTHS = ("1", "512", "2222", "ragged")
"""The CPU's form is a loop over samples of PyTorch's own kernels; longer ones add only time."""


@dataclass(frozen=True, slots=True)
class RowOp:
    """One operation on packed rows.

    Attributes:
        draw: standard normal tensors for ``(tokens, samples, channels, generator)``, fp32.
        rows: which of them are ``[N, C]`` and take the case's values; the first is the stream.
        wide: which of them stay fp32 whatever the case's dtype (trained parameters).
        original: the published operation; also truth, on fp64 tensors.
        fused: ours.
    """

    draw: Callable[[int, int, int, torch.Generator], Tensors]
    rows: tuple[int, ...]
    wide: tuple[int, ...]
    original: Call
    fused: Call


Fill = Callable[[list[Tensor], Tensor], None]
"""Changes the ``[N, C]`` tensors, the stream first, and the gradient of a case in place."""


def normal(rows: list[Tensor], grad: Tensor) -> None:
    """As drawn."""
    del rows, grad


def drifting(mean: float, rows: list[Tensor], grad: Tensor) -> None:
    """Gradients and rows with a mean, so that the sums over a sample's rows grow."""
    grad += mean
    for branch in rows[1:]:
        branch += mean


def large_mean(rows: list[Tensor], grad: Tensor) -> None:
    """A stream whose mean is thirty deviations: the variance is a small difference."""
    del grad
    rows[0].add_(30.0)


def cancelling(rows: list[Tensor], grad: Tensor) -> None:
    """Gradients in large pairs of opposite sign, with a small signal below them."""
    del rows
    half = len(grad) // 2
    grad[half : 2 * half] = -1e3 * grad[:half]
    grad[:half] *= 1e3
    grad += 1.0


def subnormal(rows: list[Tensor], grad: Tensor) -> None:
    """Gradients below the smallest normal number (1.2e-38) of bf16 and fp32."""
    del rows
    grad *= 1e-39


def constant_rows(rows: list[Tensor], grad: Tensor) -> None:
    """Every third row of the stream is constant: its variance is zero and eps alone is left."""
    del grad
    rows[0][::3] = 2.0


def nonfinite(rows: list[Tensor], grad: Tensor) -> None:
    """A NaN in the stream's first row, an infinity in the gradient's last."""
    rows[0][0, 0], grad[-1, 1] = float("nan"), float("inf")


@dataclass(frozen=True)
class RowCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`."""

    op: RowOp
    lengths: tuple[int, ...]
    fill: Fill
    dtype: torch.dtype
    device: str
    channels: int

    def inputs(self, seed: int) -> Tensors:
        """Drawn on the CPU so that every device gets the same."""
        generator = torch.Generator().manual_seed(seed)
        tokens, samples = sum(self.lengths), len(self.lengths)
        tensors = self.op.draw(tokens, samples, self.channels, generator)
        grad = torch.randn(tokens, self.channels, generator=generator)
        self.fill([tensors[index] for index in self.op.rows], grad)
        offsets = torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32)
        typed = [
            one if index in self.op.wide else one.to(self.dtype)
            for index, one in enumerate((*tensors, grad))
        ]
        return tuple(one.to(self.device) for one in (*typed, offsets))

    def result_like(self, inputs: Tensors) -> Tensors:
        """Room for the forward's ``[N, C]``."""
        return (torch.empty_like(inputs[-2]),)

    def gradients_like(self, inputs: Tensors) -> Tensors:
        """Room for the gradients of all tensors."""
        return tuple(torch.empty_like(one) for one in inputs[:-2])

    def forward(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """The result."""
        outputs[0].copy_(call(inputs[:-2], CutByOffsets(inputs[-1]), self.dtype))

    def backward(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """The gradients, as autograd computes them."""
        for output, gradient in zip(outputs, _gradients(call, inputs, self.dtype), strict=True):
            output.copy_(gradient)

    def forward_truth(self, inputs: Tensors) -> Tensors:
        """The result in fp64."""
        wide = tuple(one.double() for one in inputs[:-2])
        return (self.op.original(wide, CutByOffsets(inputs[-1]), torch.float64),)

    def backward_truth(self, inputs: Tensors) -> Tensors:
        """The gradients in fp64."""
        wide = (*(one.double() for one in inputs[:-1]), inputs[-1])
        return _gradients(self.op.original, wide, torch.float64)

    def wild_result(self, inputs: Tensors) -> Tensors:
        """Where the true result is not finite."""
        return tuple(~torch.isfinite(one) for one in self.forward_truth(inputs))

    def wild_gradients(self, inputs: Tensors) -> Tensors:
        """Where the true gradients are not finite."""
        return tuple(~torch.isfinite(one) for one in self.backward_truth(inputs))


def _gradients(call: Call, inputs: Tensors, dtype: torch.dtype) -> Tensors:
    leaves = tuple(one.detach().requires_grad_() for one in inputs[:-2])
    result = call(leaves, CutByOffsets(inputs[-1]), dtype)
    return torch.autograd.grad(result, leaves, inputs[-2])


def forward_case(name: str, case: RowCase, *, masked: bool = False) -> OpCase:
    """The operation itself."""
    return OpCase(
        name=f"forward {name}",
        inputs=case.inputs,
        outputs=case.result_like,
        reference=partial(case.forward, case.op.original),
        candidate=partial(case.forward, case.op.fused),
        truth=case.forward_truth,
        masks=case.wild_result if masked else None,
        elements=sum(case.lengths) * case.channels,
    )


def backward_case(name: str, case: RowCase, *, masked: bool = False) -> OpCase:
    """Its gradients."""
    return OpCase(
        name=f"backward {name}",
        inputs=case.inputs,
        outputs=case.gradients_like,
        reference=partial(case.backward, case.op.original),
        candidate=partial(case.backward, case.op.fused),
        truth=case.backward_truth,
        masks=case.wild_gradients if masked else None,
        elements=len(case.op.rows) * sum(case.lengths) * case.channels,
    )


def row_cases(op: RowOp, device: str) -> Sequence[OpCase]:
    """Forward and backward over lengths, means, dtypes and adversarial values."""
    on_cuda = torch.device(device).type == "cuda"
    channels = CUDA_CHANNELS if on_cuda else CPU_CHANNELS
    bf16 = RowCase(op, LENGTHS["ragged"], normal, torch.bfloat16, device, channels)
    named = {
        f"lengths {label}": replace(bf16, lengths=LENGTHS[label])
        for label in (LENGTHS if on_cuda else CPU_LENGTHS)
    }
    for mean in (0.1, 1.0):
        named[f"2222, mean/sigma {mean}"] = replace(
            bf16, lengths=LENGTHS["2222"], fill=partial(drifting, mean)
        )
    named |= {
        "large mean": replace(bf16, fill=large_mean),
        "constant rows": replace(bf16, fill=constant_rows),
        "cancelling": replace(bf16, fill=cancelling),
        "subnormal": replace(bf16, lengths=LENGTHS["512"], fill=subnormal),
        "odd width": replace(bf16, channels=channels - 3),
        "float16": replace(bf16, dtype=torch.float16),
        "float32": replace(bf16, dtype=torch.float32),
    }
    cases = [make(name, case) for name, case in named.items() for make in _BOTH]
    wild = replace(bf16, fill=nonfinite)
    return (*cases, *(make("NaN and Inf", wild, masked=True) for make in _BOTH))


_BOTH = (forward_case, backward_case)
