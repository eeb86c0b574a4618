"""Device code of the segment sum: two stages in fp32 registers, no atomics, so it repeats exactly.

Stage one reads each gradient element once: a program sums ``ROWS`` rows of one segment over
``BLOCK_C`` columns. Stage two sums a segment's partials and rounds once. Moving N x C elements in
and little out, the pair is bound by the memory's bandwidth.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.row_blocks_triton import block_count

ROWS = 256
"""Rows of one stage-one program: 8192 rows of 1536 channels give 32 x 12 programs a sample."""

BLOCK_ROWS = 16
BLOCK_C = 128
"""A tile of 16 x 128 elements: 8 KB of fp32 in registers over 4 warps, 256-byte loads of bf16."""


@triton.jit  # type: ignore[untyped-decorator]
def _partial_sums(  # type: ignore[no-untyped-def]
    rows_ptr,
    cu_ptr,
    partial_ptr,
    row_stride,
    channels,
    splits,
    ROWS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    split = tl.program_id(1)
    segment = tl.program_id(2)
    first = tl.load(cu_ptr + segment) + split * ROWS
    last = tl.minimum(tl.load(cu_ptr + segment + 1), first + ROWS)
    inside = columns < channels
    total = tl.full((BLOCK_ROWS, BLOCK_C), 0.0, tl.float32)
    for step in range(0, ROWS, BLOCK_ROWS):
        row = first + step + tl.arange(0, BLOCK_ROWS)
        at = row.to(tl.int64)[:, None] * row_stride + columns[None, :]
        keep = (row < last)[:, None] & inside[None, :]
        total += tl.load(rows_ptr + at, mask=keep, other=0.0).to(tl.float32)
    out = (segment * splits + split) * channels + columns
    tl.store(partial_ptr + out, tl.sum(total, axis=0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_partials(  # type: ignore[no-untyped-def]
    partial_ptr, out_ptr, channels, splits, BLOCK_C: tl.constexpr
):
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    segment = tl.program_id(1)
    inside = columns < channels
    total = tl.full((BLOCK_C,), 0.0, tl.float32)
    for split in range(0, splits):
        at = (segment * splits + split) * channels + columns
        total += tl.load(partial_ptr + at, mask=inside, other=0.0)
    tl.store(
        out_ptr + segment * channels + columns,
        total.to(out_ptr.dtype.element_ty),
        mask=inside,
    )


def segment_sum_triton(
    rows_NC: Tensor, offsets: Sequence[int], cu_seqlens: Tensor, dtype: torch.dtype
) -> Tensor:
    """Sum each segment's rows in fp32 and round once to ``dtype``.

    Args:
        rows_NC: packed rows with unit stride in C, fp32 or narrower.
        offsets: B + 1 row offsets on the host (only the longest segment is taken from them).
        cu_seqlens: the same on the rows' device, int32 [B + 1].
        dtype: of the result.

    Returns:
        ``[B, C]``; an empty segment gives zeros.
    """
    rows_NC = rows_NC if rows_NC.stride(1) == 1 else rows_NC.contiguous()
    segments, channels = len(offsets) - 1, rows_NC.shape[1]
    longest = max(after - before for before, after in itertools.pairwise(offsets))
    splits = max(1, block_count(longest, ROWS))
    blocks = block_count(channels, BLOCK_C)
    partial = rows_NC.new_empty((segments, splits, channels), dtype=torch.float32)
    out_BC = rows_NC.new_empty((segments, channels), dtype=dtype)
    _partial_sums[(blocks, splits, segments)](
        rows_NC,
        cu_seqlens,
        partial,
        rows_NC.stride(0),
        channels,
        splits,
        ROWS=ROWS,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_C=BLOCK_C,
    )
    _sum_partials[(blocks, segments)](partial, out_BC, channels, splits, BLOCK_C=BLOCK_C)
    return out_BC
