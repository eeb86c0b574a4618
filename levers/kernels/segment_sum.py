"""Broadcast of per-sample rows over a packed sequence, whose backward is an fp32 segment sum.

Shapes: B samples, N packed tokens (each sample's tokens contiguous), C channels.

The forward is a gather and cannot differ. The backward, ``dL/dmod[b] = sum of the rows of sample
b``, is the operation: PyTorch's ``mod[batch_map]`` adds the rows one after the other *in the
gradient's dtype*, so in bf16 (8 significant bits) an addend below half a unit in the last place of
the running sum is lost. Here the sum is accumulated in fp32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Segments(Protocol):
    """How a packed sequence is cut into samples."""

    @property
    def offsets(self) -> Sequence[int]:
        """B + 1 row offsets on the host, from 0 to N."""

    @property
    def cu_seqlens(self) -> Tensor:
        """The offsets on the device, int32 [B + 1]."""

    @property
    def batch_map(self) -> Tensor:
        """The sample of each row, int64 [N]."""


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64 rows."""
    return torch.promote_types(dtype, torch.float32)


def segment_sum_torch(rows_NC: Tensor, segments: Segments, dtype: torch.dtype) -> Tensor:
    """Sum each sample's rows in fp32 with plain PyTorch and round once to ``dtype``: ``[B, C]``.

    One pass whatever the number of samples: each row is added as a vector. The rows are added one
    after the other as in the original, but at most 2^-24 of the sum is lost each time, not 2^-9.
    """
    wide = accumulate_dtype(rows_NC.dtype)
    sums_BC = rows_NC.new_zeros((len(segments.offsets) - 1, rows_NC.shape[1]), dtype=wide)
    return sums_BC.index_add_(0, segments.batch_map, rows_NC.to(wide)).to(dtype)


def segment_sum(rows_NC: Tensor, segments: Segments, dtype: torch.dtype) -> Tensor:
    """The segment sum of the rows' device: our Triton kernel on CUDA, plain PyTorch elsewhere."""
    if rows_NC.is_cuda:
        from levers.kernels.segment_sum_triton import segment_sum_triton

        return segment_sum_triton(rows_NC, segments.offsets, segments.cu_seqlens, dtype)
    return segment_sum_torch(rows_NC, segments, dtype)


def segment_sum_truth(rows_NC: Tensor, segments: Segments) -> Tensor:
    """The same sum in fp64, not rounded: ``[B, C]``."""
    return segment_sum_torch(rows_NC.double(), segments, torch.float64)


class SegmentSumBroadcast(torch.autograd.Function):
    """Gather of per-sample rows with the fp32 segment sum as its backward."""

    @staticmethod
    def forward(ctx: Any, mod_BC: Tensor, segments: Segments) -> Tensor:
        """``mod_BC[batch_map]``, bit for bit."""
        ctx.segments, ctx.dtype = segments, mod_BC.dtype
        return mod_BC.index_select(0, segments.batch_map)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The rows' sum by sample, in the dtype of ``mod_BC``."""
        return segment_sum(grads[0], ctx.segments, ctx.dtype), None


def broadcast(mod_BC: Tensor, segments: Segments) -> Tensor:
    """Each sample's row for each of its tokens, ``[N, C]``, differentiable by the segment sum."""
    out_NC: Tensor = SegmentSumBroadcast.apply(mod_BC, segments)  # type: ignore[no-untyped-call]
    return out_NC
