"""The op cases of the fused affine norm (see :mod:`.row_cases`); samples do not matter to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from levers.base import OpCase
from levers.kernels.affine_norm import affine_norm_to
from levers.kernels.row_cases import RowOp, Tensors, row_cases
from levers.kernels.row_norm import EPS
from levers.kernels.segment_sum import accumulate_dtype
from levers.kernels.segment_sum_cases import CutByOffsets


def _draw(tokens: int, samples: int, channels: int, generator: torch.Generator) -> Tensors:
    """Rows, and a weight and a bias as after some training."""
    del samples
    x = torch.randn(tokens, channels, generator=generator)
    affine = 0.1 * torch.randn(2, channels, generator=generator)
    return x, 1 + affine[0], affine[1]


def original(tensors: Tensors, segments: CutByOffsets, dtype: torch.dtype) -> Tensors:
    """As published: LayerNorm in fp32, then the Linear's rounding."""
    del segments
    x, weight, bias = tensors
    wide = x.to(accumulate_dtype(x.dtype))
    return F.layer_norm(wide, wide.shape[-1:], weight, bias, eps=EPS).to(dtype), x


def fused(tensors: Tensors, segments: CutByOffsets, dtype: torch.dtype) -> Tensors:
    """Ours."""
    del segments
    x, weight, bias = tensors
    return affine_norm_to(x, weight, bias, dtype)


AFFINE_NORM = RowOp(_draw, rows=(0,), wide=(1, 2), original=original, fused=fused, results=2)


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    return row_cases(AFFINE_NORM, device)
