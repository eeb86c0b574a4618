"""The op cases of the fused residual and norm (see :mod:`.row_cases`).

Three forms, as the blocks use them: a gated branch before an affine norm, a branch without a gate
before a modulated one, and a gated branch before a modulated one. The first result is the normed
rows; a few cases more look at the sum, whose errors a norm would hide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from levers.base import OpCase
from levers.kernels.residual_norm import residual_norm_to
from levers.kernels.row_cases import (
    RowCase,
    RowOp,
    Tensors,
    cancelling,
    constant_rows,
    forward_case,
    large_mean,
    normal,
    row_cases,
)
from levers.kernels.row_norm import EPS
from levers.kernels.segment_sum import accumulate_dtype
from levers.kernels.segment_sum_cases import CUDA_CHANNELS, LENGTHS, CutByOffsets

CPU_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class Form:
    """Which residual meets which norm.

    Attributes:
        gated: whether the branch has a gate.
        modulated: whether the norm is modulated, else it is affine.
        sum_first: whether the sum is the first result, else the norm is.
    """

    gated: bool
    modulated: bool
    sum_first: bool = False

    def draw(self, tokens: int, samples: int, channels: int, generator: torch.Generator) -> Tensors:
        """Stream, branch, the gate if there is one, shift and scale, as after some training."""
        x, h = torch.randn(2, tokens, channels, generator=generator)
        rows = 0.3 * torch.randn(3, samples, channels, generator=generator)
        shift, scale = rows[1:] if self.modulated else (rows[1, 0] / 3, 1 + rows[2, 0] / 3)
        return (x, h, *([0.5 + rows[0]] if self.gated else []), shift, scale)

    def original(self, tensors: Tensors, segments: CutByOffsets, dtype: torch.dtype) -> Tensors:
        """As published: gather, product and sum, each rounded; LayerNorm in fp32, and what follows.

        The modulation gathers, multiplies and adds in fp32; then the Linear rounds.
        """
        x, h, *gates, shift, scale = tensors
        out = x + h * gates[0][segments.batch_map] if gates else x + h
        wide = out.to(accumulate_dtype(out.dtype))
        if self.modulated:
            normed = F.layer_norm(wide, wide.shape[-1:], eps=EPS) * (1 + scale)[segments.batch_map]
            normed = normed + shift[segments.batch_map]
        else:
            normed = F.layer_norm(wide, wide.shape[-1:], scale, shift, eps=EPS)
        return self._ordered(normed.to(dtype), out)

    def fused(self, tensors: Tensors, segments: CutByOffsets, dtype: torch.dtype) -> Tensors:
        """Ours."""
        x, h, *gates, shift, scale = tensors
        gate = gates[0] if gates else None
        return self._ordered(*residual_norm_to(x, h, gate, shift, scale, segments, dtype))

    def _ordered(self, *results: torch.Tensor) -> Tensors:
        return results[::-1] if self.sum_first else results

    @property
    def op(self) -> RowOp:
        """The operation of this form; weight and bias stay fp32."""
        wide = () if self.modulated else (2 + self.gated, 3 + self.gated)
        return RowOp(self.draw, (0, 1), wide, self.original, self.fused, results=2)


FORMS = {
    "gated, affine": Form(gated=True, modulated=False),
    "modulated": Form(gated=False, modulated=True),
    "gated, modulated": Form(gated=True, modulated=True),
}


def sum_cases(form: Form, device: str) -> Sequence[OpCase]:
    """Of the sum alone, forward: its backward is in the other cases.

    Without a gate the sum is PyTorch's own on a CPU: nothing would be compared.
    """
    on_cuda = torch.device(device).type == "cuda"
    if not (form.gated or on_cuda):
        return ()
    channels = CUDA_CHANNELS if on_cuda else CPU_CHANNELS
    op = replace(form, sum_first=True).op
    bf16 = RowCase(op, LENGTHS["ragged"], normal, torch.bfloat16, device, channels)
    cases = {
        "sum": bf16,
        "sum, large mean": replace(bf16, fill=large_mean),
        "sum, constant rows": replace(bf16, fill=constant_rows),
        "sum, cancelling": replace(bf16, fill=cancelling),
        "sum, odd width": replace(bf16, channels=channels - 3),
        "sum, float16": replace(bf16, dtype=torch.float16),
        "sum, float32": replace(bf16, dtype=torch.float32),
    }
    return tuple(forward_case(name, case) for name, case in cases.items())


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases of all forms for a device."""
    return tuple(
        replace(case, name=f"{case.name} ({name})")
        for name, form in FORMS.items()
        for case in (*row_cases(form.op, device), *sum_cases(form, device))
    )
