"""The op cases of the fused modulation (see :mod:`.row_cases`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from levers.base import OpCase
from levers.kernels.modulate import modulate_to
from levers.kernels.row_cases import RowOp, Tensors, row_cases
from levers.kernels.row_norm import EPS
from levers.kernels.segment_sum import accumulate_dtype
from levers.kernels.segment_sum_cases import CutByOffsets


def _draw(tokens: int, samples: int, channels: int, generator: torch.Generator) -> Tensors:
    """Rows, shift and scale; a trained modulation is some tenths."""
    x = torch.randn(tokens, channels, generator=generator)
    modulation = 0.3 * torch.randn(2, samples, channels, generator=generator)
    return x, modulation[0], modulation[1]


def original(tensors: Tensors, segments: CutByOffsets, dtype: torch.dtype) -> Tensors:
    """As published: LayerNorm in fp32, two gathers, product, sum; then the Linear's rounding."""
    x, shift, scale = tensors
    wide = x.to(accumulate_dtype(x.dtype))
    normed = F.layer_norm(wide, wide.shape[-1:], eps=EPS)
    scaled = normed * (1 + scale)[segments.batch_map]
    return (scaled + shift[segments.batch_map]).to(dtype), x


def fused(tensors: Tensors, segments: CutByOffsets, dtype: torch.dtype) -> Tensors:
    """Ours."""
    x, shift, scale = tensors
    return modulate_to(x, shift, scale, segments, dtype)


MODULATE = RowOp(_draw, rows=(0,), wide=(), original=original, fused=fused, results=2)


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    return row_cases(MODULATE, device)
