"""Device code of LayerNorm followed by a scale and a shift: ``y = (x - mean) rstd scale + shift``.

Scale and shift are rows by sample (the modulation) or one row for all (the affine norm). A program
walks ``ROWS`` rows of one sample with the scale in registers and the next row's load in flight. The
backward keeps two fp32 sums in registers, which are the gradients of scale and shift over its rows;
a second kernel sums the programs' partials, in fp64. No gradient by row is written but that of
``x``, to which the gradient of the stream beside the norm is added before it is rounded, and there
are no atomics, so it repeats exactly.

Bytes at N rows of C bf16 channels: the forward moves 4 NC, the backward 8 NC (6 without a stream's
gradient) and ``16 C N / ROWS`` for the partials. At 19,812 x 1,536 and 4.3 TB/s that is 28 us and
57 us (42) + 3.5 us; the sum of the two gradients apart would move another 6 NC, 42 us.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.norm_of_row_triton import norm_gradient, norm_of_row, sample_row
from levers.kernels.row_blocks_triton import (
    block_width,
    row_block,
    slot_count,
    sum_partials,
    with_unit_stride,
)

FORWARD_ROWS = 8
BACKWARD_ROWS = 32
"""Rows of one program: 2,484 and 627 programs at 19,812 rows in 8 samples, for 132 processors. More
rows leave processors empty, fewer make the partials a noticeable share of the bytes."""

FORWARD_ELEMENTS = 512
BACKWARD_ELEMENTS = 256
"""Channels of one warp: 4 and 8 warps at 2048 (1536 padded), 16-byte loads; the backward holds five
more rows in registers."""

LARGEST_WARPS = 16


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x_ptr, scale_ptr, shift_ptr, y_ptr, mean_ptr, rstd_ptr, cu_ptr, rows, samples, channels,
    x_stride, scale_stride, shift_stride, eps,
    ROWS: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK: tl.constexpr,
    SEGMENTED: tl.constexpr, PLUS_ONE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < channels
    sample, first, last = row_block(
        tl.program_id(0), cu_ptr, rows, samples, ROWS, BLOCK_B, SEGMENTED
    )
    scale = sample_row(scale_ptr + sample * scale_stride, columns, inside, PLUS_ONE)
    shift = sample_row(shift_ptr + sample * shift_stride, columns, inside, False)
    x_at = x_ptr + first.to(tl.int64) * x_stride + columns
    y_at = y_ptr + first.to(tl.int64) * channels + columns
    ahead = tl.load(x_at, mask=columns < tl.where(first < last, channels, 0), other=0.0)
    count = tl.full((), channels, tl.float32)
    eps = tl.full((), eps, tl.float32)  # an fp64 value in a graph that Inductor compiled
    for step in range(0, last - first):
        x = ahead.to(tl.float32)
        x_at += x_stride
        filled = tl.where(first + step + 1 < last, channels, 0)
        ahead = tl.load(x_at, mask=columns < filled, other=0.0)
        normed, mean, rstd = norm_of_row(x, inside, count, eps, EXACT)
        y = normed * scale + shift
        tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(mean_ptr + first + step, mean)
        tl.store(rstd_ptr + first + step, rstd)
        y_at += channels


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad_ptr,
    stream_ptr,
    x_ptr,
    mean_ptr,
    rstd_ptr,
    scale_ptr,
    dx_ptr,
    scale_partial_ptr,
    shift_partial_ptr,
    cu_ptr,
    rows,
    samples,
    channels,
    grad_stride,
    stream_stride,
    x_stride,
    scale_stride,
    ROWS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK: tl.constexpr,
    SEGMENTED: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    STREAM: tl.constexpr,
    SUMS: tl.constexpr,
    EXACT: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < channels
    slot = tl.program_id(0)
    sample, first, last = row_block(slot, cu_ptr, rows, samples, ROWS, BLOCK_B, SEGMENTED)
    scale = sample_row(scale_ptr + sample * scale_stride, columns, inside, PLUS_ONE)
    scale_sum = tl.full((BLOCK,), 0.0, tl.float32)
    shift_sum = tl.full((BLOCK,), 0.0, tl.float32)
    count = tl.full((), channels, tl.float32)
    x_at = x_ptr + first.to(tl.int64) * x_stride + columns
    grad_at = grad_ptr + first.to(tl.int64) * grad_stride + columns
    dx_at = dx_ptr + first.to(tl.int64) * channels + columns
    filled = tl.where(first < last, channels, 0)
    x_ahead = tl.load(x_at, mask=columns < filled, other=0.0)
    grad_ahead = tl.load(grad_at, mask=columns < filled, other=0.0)
    mean_ahead = tl.load(mean_ptr + first, mask=first < last, other=0.0)
    rstd_ahead = tl.load(rstd_ptr + first, mask=first < last, other=0.0)
    if STREAM:
        stream_at = stream_ptr + first.to(tl.int64) * stream_stride + columns
        stream_ahead = tl.load(stream_at, mask=columns < filled, other=0.0)
    for step in range(0, last - first):
        x = x_ahead.to(tl.float32)
        grad = grad_ahead.to(tl.float32)
        x_at += x_stride
        grad_at += grad_stride
        rstd = rstd_ahead
        normed = tl.where(inside, (x - mean_ahead) * rstd, 0.0)
        more = first + step + 1 < last
        filled = tl.where(more, channels, 0)
        x_ahead = tl.load(x_at, mask=columns < filled, other=0.0)
        grad_ahead = tl.load(grad_at, mask=columns < filled, other=0.0)
        mean_ahead = tl.load(mean_ptr + first + step + 1, mask=more, other=0.0)
        rstd_ahead = tl.load(rstd_ptr + first + step + 1, mask=more, other=0.0)
        dx = norm_gradient(grad * scale, normed, rstd, count, EXACT)
        if STREAM:
            dx += stream_ahead.to(tl.float32)
            stream_at += stream_stride
            stream_ahead = tl.load(stream_at, mask=columns < filled, other=0.0)
        tl.store(dx_at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dx_at += channels
        if SUMS:
            scale_sum += grad * normed
            shift_sum += grad
    if SUMS:
        at = slot.to(tl.int64) * channels + columns
        tl.store(scale_partial_ptr + at, scale_sum, mask=inside)
        tl.store(shift_partial_ptr + at, shift_sum, mask=inside)


def _warps(block: int, elements: int) -> int:
    return max(1, min(LARGEST_WARPS, block // elements))


def forward_triton(
    x_NC: Tensor,
    scale_BC: Tensor,
    shift_BC: Tensor,
    cu_seqlens: Tensor | None,
    *,
    eps: float,
    plus_one: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """One launch: the rows in ``dtype``, and their mean and reciprocal deviation in fp32 ``[N]``.

    Args:
        x_NC: bf16, fp16 or fp32.
        scale_BC: rows by sample.
        shift_BC: the same, added.
        cu_seqlens: int32 [B + 1], or None where B is 1.
        eps: added to the variance.
        plus_one: the factor is ``1 + scale``.
        dtype: of the rows.
    """
    x_NC = with_unit_stride(x_NC)
    scale_BC, shift_BC = with_unit_stride(scale_BC), with_unit_stride(shift_BC)
    rows, channels = x_NC.shape
    samples, block = scale_BC.shape[0], block_width(channels)
    y_NC = x_NC.new_empty((rows, channels), dtype=dtype)
    mean_N = x_NC.new_empty(rows, dtype=torch.float32)
    rstd_N = torch.empty_like(mean_N)
    _forward[(slot_count(rows, samples, FORWARD_ROWS),)](
        x_NC,
        scale_BC,
        shift_BC,
        y_NC,
        mean_N,
        rstd_N,
        x_NC if cu_seqlens is None else cu_seqlens,
        rows,
        samples,
        channels,
        x_NC.stride(0),
        scale_BC.stride(0),
        shift_BC.stride(0),
        eps,
        ROWS=FORWARD_ROWS,
        BLOCK_B=block_width(samples),
        BLOCK=block,
        SEGMENTED=cu_seqlens is not None,
        PLUS_ONE=plus_one,
        EXACT=dtype == torch.float32,
        num_warps=_warps(block, FORWARD_ELEMENTS),
    )
    return y_NC, mean_N, rstd_N


def backward_triton(
    grad_NC: Tensor,
    stream_NC: Tensor | None,
    x_NC: Tensor,
    mean_N: Tensor,
    rstd_N: Tensor,
    scale_BC: Tensor,
    cu_seqlens: Tensor | None,
    *,
    plus_one: bool,
    sums: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of rows, scale and shift, in two launches (one without ``sums``).

    Each is rounded once to the dtype of what it is the gradient of; scale and shift share theirs.
    ``stream_NC``, if it is there, is a gradient of the rows that came another way, and is added.
    """
    x_NC, grad_NC = with_unit_stride(x_NC), with_unit_stride(grad_NC)
    scale_BC = with_unit_stride(scale_BC)
    beside_NC = grad_NC if stream_NC is None else with_unit_stride(stream_NC)
    rows, channels = x_NC.shape
    samples, block = scale_BC.shape[0], block_width(channels)
    slots = slot_count(rows, samples, BACKWARD_ROWS)
    dx_NC = x_NC.new_empty((rows, channels))
    partial_KPC = x_NC.new_empty((2, slots if sums else 0, channels), dtype=torch.float32)
    _backward[(slots,)](
        grad_NC,
        beside_NC,
        x_NC,
        mean_N,
        rstd_N,
        scale_BC,
        dx_NC,
        partial_KPC[0],
        partial_KPC[1],
        x_NC if cu_seqlens is None else cu_seqlens,
        rows,
        samples,
        channels,
        grad_NC.stride(0),
        beside_NC.stride(0),
        x_NC.stride(0),
        scale_BC.stride(0),
        ROWS=BACKWARD_ROWS,
        BLOCK_B=block_width(samples),
        BLOCK=block,
        SEGMENTED=cu_seqlens is not None,
        PLUS_ONE=plus_one,
        STREAM=stream_NC is not None,
        SUMS=sums,
        EXACT=dx_NC.dtype == torch.float32,
        num_warps=_warps(block, BACKWARD_ELEMENTS),
    )
    if not sums:
        return dx_NC, None, None
    summed = sum_partials(partial_KPC, cu_seqlens, rows, samples, BACKWARD_ROWS, scale_BC.dtype)
    return dx_NC, summed[0], summed[1]
