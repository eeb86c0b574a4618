"""The cases of the op check of the packed broadcast: forward and backward against fp64.

A case's inputs are the rows ``mod [B, C]``, their gradient by token ``grad [N, C]`` and
``cu_seqlens [B + 1]``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from levers.base import OpCase
from levers.kernels.segment_sum import broadcast, segment_sum_truth

Tensors = tuple[Tensor, ...]

CPU_CHANNELS = 96
CUDA_CHANNELS = 1536

LENGTHS: dict[str, tuple[int, ...]] = {
    "1": (1, 1, 1),
    "512": (512, 512),
    "2222": (2222, 2222),
    "8192": (8192,),
    "skewed": (8192, 1000, 1000, 1),
    "ragged": (601, 1, 257, 256, 255, 3673, 17),
}
MEANS = (0.0, 0.1, 1.0)
"""Mean over sigma of the gradients: the larger, the sooner a bf16 sum stands still."""

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class CutByOffsets:
    """Segments rebuilt from the offsets on the device alone."""

    cu_seqlens: Tensor

    @cached_property
    def offsets(self) -> list[int]:
        """B + 1 row offsets on the host."""
        found: list[int] = self.cu_seqlens.tolist()
        return found

    @cached_property
    def batch_map(self) -> Tensor:
        """The sample of each row."""
        counts = self.cu_seqlens.diff().long()
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


Fill = Callable[[Tensor, torch.Generator], Tensor]
"""Turns standard normal fp32 gradients ``[N, C]`` into the case's."""


def _shifted(mean: float, normal: Tensor, generator: torch.Generator) -> Tensor:
    del generator
    return normal + mean


def _cancelling(normal: Tensor, generator: torch.Generator) -> Tensor:
    """Large terms in pairs of opposite sign, shuffled, with a small signal below them."""
    half = normal.shape[0] // 2
    big = torch.cat([1e3 * normal[:half].abs(), -1e3 * normal[:half].abs(), normal[2 * half :]])
    return big[torch.randperm(len(big), generator=generator)] + 1.0


def _subnormal(normal: Tensor, generator: torch.Generator) -> Tensor:
    """Below the smallest normal number (1.2e-38) of bf16 and fp32."""
    del generator
    return normal * 1e-39


def _nonfinite(normal: Tensor, generator: torch.Generator) -> Tensor:
    """A NaN in the first row of column 0, an infinity in the last row of column 1."""
    del generator
    normal[0, 0], normal[-1, 1] = float("nan"), float("inf")
    return normal


@dataclass(frozen=True)
class BroadcastCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`."""

    lengths: tuple[int, ...]
    fill: Fill
    dtype: torch.dtype
    device: str
    channels: int

    def inputs(self, seed: int) -> Tensors:
        """``mod, grad, cu_seqlens``, drawn on the CPU so that every device gets the same."""
        generator = torch.Generator().manual_seed(seed)
        tokens, samples = sum(self.lengths), len(self.lengths)
        mod = torch.randn(samples, self.channels, generator=generator)
        grad = self.fill(torch.randn(tokens, self.channels, generator=generator), generator)
        offsets = torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32)
        return (
            mod.to(self.dtype).to(self.device),
            grad.to(self.dtype).to(self.device),
            offsets.to(self.device),
        )

    def rows_like(self, inputs: Tensors) -> Tensors:
        """Room for the forward's ``[N, C]``."""
        return (torch.empty_like(inputs[1]),)

    def mod_like(self, inputs: Tensors) -> Tensors:
        """Room for the backward's ``[B, C]``."""
        return (torch.empty_like(inputs[0]),)

    def forward(self, call: Callable[..., Tensor], inputs: Tensors, outputs: Tensors) -> None:
        """The broadcast rows."""
        outputs[0].copy_(call(inputs[0], CutByOffsets(inputs[2])))

    def backward(self, call: Callable[..., Tensor], inputs: Tensors, outputs: Tensors) -> None:
        """The gradient of the rows, as autograd computes it."""
        mod = inputs[0].detach().requires_grad_()
        rows = call(mod, CutByOffsets(inputs[2]))
        outputs[0].copy_(torch.autograd.grad(rows, mod, inputs[1])[0])

    def forward_truth(self, inputs: Tensors) -> Tensors:
        """The gather in fp64."""
        return (inputs[0].double().index_select(0, CutByOffsets(inputs[2]).batch_map),)

    def backward_truth(self, inputs: Tensors) -> Tensors:
        """The sum in fp64."""
        return (segment_sum_truth(inputs[1], CutByOffsets(inputs[2])),)

    def nonfinite(self, inputs: Tensors) -> Tensors:
        """Where the true sum is not finite."""
        return (~torch.isfinite(self.backward_truth(inputs)[0]),)


def indexed(mod_BC: Tensor, segments: CutByOffsets) -> Tensor:
    """The original: advanced indexing."""
    return mod_BC[segments.batch_map]


def _forward_case(name: str, case: BroadcastCase) -> OpCase:
    return OpCase(
        name=f"forward {name}",
        inputs=case.inputs,
        outputs=case.rows_like,
        reference=partial(case.forward, indexed),
        candidate=partial(case.forward, broadcast),
        truth=case.forward_truth,
        elements=sum(case.lengths) * case.channels,
    )


def _backward_case(name: str, case: BroadcastCase, *, masked: bool = False) -> OpCase:
    return OpCase(
        name=f"backward {name}",
        inputs=case.inputs,
        outputs=case.mod_like,
        reference=partial(case.backward, indexed),
        candidate=partial(case.backward, broadcast),
        truth=case.backward_truth,
        masks=case.nonfinite if masked else None,
        elements=len(case.lengths) * case.channels,
    )


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    channels = CUDA_CHANNELS if torch.device(device).type == "cuda" else CPU_CHANNELS
    make = partial(BroadcastCase, device=device, channels=channels)
    bf16 = torch.bfloat16
    cases = []
    for (label, lengths), mean in itertools.product(LENGTHS.items(), MEANS):
        case = make(lengths, partial(_shifted, mean), bf16)
        cases.append(_backward_case(f"lengths {label}, mean/sigma {mean}, bfloat16", case))
    for label, lengths in LENGTHS.items():
        case = make(lengths, partial(_shifted, 0.0), bf16)
        cases.append(_forward_case(f"lengths {label}, bfloat16", case))
    for dtype in DTYPES[1:]:
        case = make(LENGTHS["ragged"], partial(_shifted, 0.1), dtype)
        cases.append(_backward_case(f"ragged, {dtype}".replace("torch.", ""), case))
    for label, fill in (("cancelling", _cancelling), ("subnormal", _subnormal)):
        cases.append(_backward_case(f"{label}, bfloat16", make(LENGTHS["512"], fill, bf16)))
    wild = make(LENGTHS["ragged"], _nonfinite, bf16)
    cases.append(_backward_case("NaN and Inf, bfloat16", wild, masked=True))
    return tuple(cases)
