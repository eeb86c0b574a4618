"""The op cases of the fused gated residual (see :mod:`.row_cases`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from levers.base import OpCase
from levers.kernels.gate_residual import gate_residual
from levers.kernels.row_cases import RowOp, Tensors, row_cases
from levers.kernels.segment_sum_cases import CutByOffsets


def _draw(tokens: int, samples: int, channels: int, generator: torch.Generator) -> Tensors:
    """Stream, branch and gate."""
    x, h = torch.randn(2, tokens, channels, generator=generator)
    return x, h, 0.5 * torch.randn(samples, channels, generator=generator)


def original(tensors: Tensors, segments: CutByOffsets, dtype: torch.dtype) -> Tensors:
    """As published: a gather, a product and a sum, each rounded."""
    x, h, gate = tensors
    return ((x + h * gate[segments.batch_map]).to(dtype),)


def fused(tensors: Tensors, segments: CutByOffsets, dtype: torch.dtype) -> Tensors:
    """Ours, which keeps the stream's dtype."""
    x, h, gate = tensors
    return (gate_residual(x, h, gate, segments).to(dtype),)


GATE_RESIDUAL = RowOp(_draw, rows=(0, 1), wide=(), original=original, fused=fused)


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    return row_cases(GATE_RESIDUAL, device)
