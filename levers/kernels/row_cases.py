"""The cases of the op check of the fused row operations: forward and backward against fp64.

A case's inputs are the operation's tensors, the gradients of its results ``[N, C]`` (a norm's rows,
then the stream that goes on beside them) and ``cu_seqlens [B + 1]``. Truth is the original formula
on the same inputs in fp64, its gradients by autograd. The original's rows are rounded to the next
Linear's dtype, as that Linear does.
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
Call = Callable[[Tensors, CutByOffsets, torch.dtype], Tensors]
"""Tensors of the operation, segments and the first result's dtype to the results ``[N, C]``."""

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
        results: how many ``[N, C]`` it returns; one after the first is the stream as it came.
    """

    draw: Callable[[int, int, int, torch.Generator], Tensors]
    rows: tuple[int, ...]
    wide: tuple[int, ...]
    original: Call
    fused: Call
    results: int = 1


Fill = Callable[[Sequence[Tensor], Sequence[Tensor]], None]
"""Changes the ``[N, C]`` tensors, the stream first, and the gradients of a case in place."""


def normal(rows: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """As drawn."""
    del rows, grads


def drifting(mean: float, rows: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Gradients and rows with a mean, so that the sums over a sample's rows grow."""
    for one in (*grads, *rows[1:]):
        one.add_(mean)


def large_mean(rows: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """A stream whose mean is thirty deviations: the variance is a small difference."""
    del grads
    rows[0].add_(30.0)


def cancelling(rows: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Gradients in large pairs of opposite sign, with a small signal below them."""
    del rows
    for grad in grads:
        half = len(grad) // 2
        grad[half : 2 * half] = -1e3 * grad[:half]
        grad[:half] *= 1e3
        grad += 1.0


def subnormal(rows: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Gradients below the smallest normal number (1.2e-38) of bf16 and fp32."""
    del rows
    for grad in grads:
        grad *= 1e-39


def constant_rows(rows: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Every third row of the stream is constant: its variance is zero and eps alone is left."""
    del grads
    rows[0][::3] = 2.0


def nonfinite(rows: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """A NaN in the stream's first row, an infinity in a gradient's last and in one's second."""
    rows[0][0, 0], grads[0][-1, 1], grads[-1][1, 2] = float("nan"), float("inf"), -float("inf")


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
        shape = (self.op.results, tokens, self.channels)
        grads = torch.randn(shape, generator=generator).unbind()
        self.fill([tensors[index] for index in self.op.rows], grads)
        offsets = torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32)
        typed = [
            one if index in self.op.wide else one.to(self.dtype)
            for index, one in enumerate((*tensors, *grads))
        ]
        return tuple(one.to(self.device) for one in (*typed, offsets))

    def parts(self, inputs: Tensors) -> tuple[Tensors, Tensors, CutByOffsets]:
        """The operation's tensors, the gradients of its results, and the segments."""
        *both, offsets = inputs
        cut = len(both) - self.op.results
        return tuple(both[:cut]), tuple(both[cut:]), CutByOffsets(offsets)

    def result_like(self, inputs: Tensors) -> Tensors:
        """Room for the forward's ``[N, C]``."""
        return (torch.empty_like(inputs[-2]),)

    def gradients_like(self, inputs: Tensors) -> Tensors:
        """Room for the gradients of all tensors."""
        return tuple(map(torch.empty_like, self.parts(inputs)[0]))

    def forward(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """The first result; a stream that goes on as it came would be compared with itself."""
        tensors, _, segments = self.parts(inputs)
        outputs[0].copy_(call(tensors, segments, self.dtype)[0])

    def backward(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """The gradients, as autograd computes them."""
        found = self.gradients(call, inputs, self.dtype)
        for output, gradient in zip(outputs, found, strict=True):
            output.copy_(gradient)

    def gradients(self, call: Call, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """Of all tensors, by autograd, the results being used with the case's gradients."""
        tensors, grads, segments = self.parts(inputs)
        leaves = tuple(one.detach().requires_grad_() for one in tensors)
        return torch.autograd.grad(call(leaves, segments, dtype), leaves, grads)

    def forward_truth(self, inputs: Tensors) -> Tensors:
        """The result in fp64."""
        tensors, _, segments = self.parts(inputs)
        wide = tuple(one.double() for one in tensors)
        return self.op.original(wide, segments, torch.float64)[:1]

    def backward_truth(self, inputs: Tensors) -> Tensors:
        """The gradients in fp64."""
        wide = (*(one.double() for one in inputs[:-1]), inputs[-1])
        return self.gradients(self.op.original, wide, torch.float64)

    def wild_result(self, inputs: Tensors) -> Tensors:
        """Where the true result is not finite."""
        return tuple(~torch.isfinite(one) for one in self.forward_truth(inputs))

    def wild_gradients(self, inputs: Tensors) -> Tensors:
        """Where the true gradients are not finite."""
        return tuple(~torch.isfinite(one) for one in self.backward_truth(inputs))


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
