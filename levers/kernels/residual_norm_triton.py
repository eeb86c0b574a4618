"""Device code of ``x + h * gate`` and the LayerNorm of that sum: one kernel each way.

The gate is a row by sample, or there is none and ``h`` is added as it is. Scale and shift are rows
by sample (the modulation) or one row for all (the affine norm). A program walks ``ROWS`` rows of
one sample, with the rows that it needs next in flight. Forward: sum, rounded; norm of the rounded
sum, rounded; two fp32 values a row. Backward: the norm's gradient, that of the stream beside it
added, rounded once; from the rounded row the branch's; up to three fp32 sums in registers, which
are the gradients of scale, shift and gate over the program's rows, and a second kernel sums the
programs' partials, in fp64. No atomics, so it repeats exactly. Each rounding is that of the two
kernels apart (:mod:`.gate_residual_triton`, :mod:`.row_norm_triton`), which read the sum once more.

Bytes at N rows of C bf16 channels: the forward moves 8 NC (apart 10), the backward 12 NC with a
gate (apart 14) and 8 NC without one (apart 8), and ``8 K C N / ROWS`` for K kinds of partials. At
32,768 x 1,536 and 4.3 TB/s that is 94 us forward, 140 us + 9 us (K = 3) and 94 us + 6 us (K = 2).
"""

from __future__ import annotations

import triton
import triton.language as tl

from levers.kernels.norm_of_row_triton import norm_gradient, norm_of_row, sample_row
from levers.kernels.row_blocks_triton import row_block


@triton.jit  # type: ignore[untyped-decorator]
def residual_norm_forward(  # type: ignore[no-untyped-def]
    x_ptr,
    h_ptr,
    gate_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    cu_ptr,
    rows,
    samples,
    channels,
    x_stride,
    h_stride,
    gate_stride,
    scale_stride,
    shift_stride,
    eps,
    ROWS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Sum and norm of ``ROWS`` rows of a sample."""
    columns = tl.arange(0, BLOCK)
    inside = columns < channels
    sample, first, last = row_block(tl.program_id(0), cu_ptr, rows, samples, ROWS, BLOCK_B, True)
    scale = sample_row(scale_ptr + sample * scale_stride, columns, inside, PLUS_ONE)
    shift = sample_row(shift_ptr + sample * shift_stride, columns, inside, False)
    if GATED:
        gate = sample_row(gate_ptr + sample * gate_stride, columns, inside, False)
    count = tl.full((), channels, tl.float32)
    eps = tl.full((), eps, tl.float32)  # an fp64 value in a graph that Inductor compiled
    x_ahead = _row_at(x_ptr, first, x_stride, columns, first < last, channels)
    h_ahead = _row_at(h_ptr, first, h_stride, columns, first < last, channels)
    for row in range(first, last):
        x = x_ahead.to(tl.float32)
        h = h_ahead.to(tl.float32)
        more = row + 1 < last
        x_ahead = _row_at(x_ptr, row + 1, x_stride, columns, more, channels)
        h_ahead = _row_at(h_ptr, row + 1, h_stride, columns, more, channels)
        if GATED:
            out = (x + h * gate).to(out_ptr.dtype.element_ty)
        else:
            out = (x + h).to(out_ptr.dtype.element_ty)
        at = tl.cast(row, tl.int64) * channels
        tl.store(out_ptr + at + columns, out, mask=inside)
        normed, mean, rstd = norm_of_row(out.to(tl.float32), inside, count, eps, EXACT)
        y = normed * scale + shift
        tl.store(y_ptr + at + columns, y.to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(mean_ptr + row, mean)
        tl.store(rstd_ptr + row, rstd)


@triton.jit
def _row_at(ptr, row, stride, columns, there, channels):  # type: ignore[no-untyped-def]
    """A row of a matrix, or zeros where it is not there."""
    base = ptr + tl.cast(row, tl.int64) * stride
    return tl.load(base + columns, mask=columns < tl.where(there, channels, 0), other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def residual_norm_backward(  # type: ignore[no-untyped-def]
    grad_ptr,
    stream_ptr,
    out_ptr,
    h_ptr,
    mean_ptr,
    rstd_ptr,
    gate_ptr,
    scale_ptr,
    dx_ptr,
    dh_ptr,
    scale_partial_ptr,
    shift_partial_ptr,
    gate_partial_ptr,
    cu_ptr,
    rows,
    samples,
    channels,
    grad_stride,
    stream_stride,
    h_stride,
    gate_stride,
    scale_stride,
    ROWS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    STREAM: tl.constexpr,
    SUMS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Gradients of ``ROWS`` rows of a sample, and the sums over them."""
    columns = tl.arange(0, BLOCK)
    inside = columns < channels
    slot = tl.program_id(0)
    sample, first, last = row_block(slot, cu_ptr, rows, samples, ROWS, BLOCK_B, True)
    scale = sample_row(scale_ptr + sample * scale_stride, columns, inside, PLUS_ONE)
    count = tl.full((), channels, tl.float32)
    scale_sum = tl.full((BLOCK,), 0.0, tl.float32)
    shift_sum = tl.full((BLOCK,), 0.0, tl.float32)
    out_ahead = _row_at(out_ptr, first, channels, columns, first < last, channels)
    grad_ahead = _row_at(grad_ptr, first, grad_stride, columns, first < last, channels)
    mean_ahead = tl.load(mean_ptr + first, mask=first < last, other=0.0)
    rstd_ahead = tl.load(rstd_ptr + first, mask=first < last, other=0.0)
    if STREAM:
        stream_ahead = _row_at(stream_ptr, first, stream_stride, columns, first < last, channels)
    if GATED:
        gate = sample_row(gate_ptr + sample * gate_stride, columns, inside, False)
        gate_sum = tl.full((BLOCK,), 0.0, tl.float32)
        if SUMS:
            h_ahead = _row_at(h_ptr, first, h_stride, columns, first < last, channels)
    for row in range(first, last):
        out = out_ahead.to(tl.float32)
        grad = grad_ahead.to(tl.float32)
        rstd = rstd_ahead
        normed = tl.where(inside, (out - mean_ahead) * rstd, 0.0)
        more = row + 1 < last
        out_ahead = _row_at(out_ptr, row + 1, channels, columns, more, channels)
        grad_ahead = _row_at(grad_ptr, row + 1, grad_stride, columns, more, channels)
        mean_ahead = tl.load(mean_ptr + row + 1, mask=more, other=0.0)
        rstd_ahead = tl.load(rstd_ptr + row + 1, mask=more, other=0.0)
        dx = norm_gradient(grad * scale, normed, rstd, count, EXACT)
        if STREAM:
            dx += stream_ahead.to(tl.float32)
            stream_ahead = _row_at(stream_ptr, row + 1, stream_stride, columns, more, channels)
        rounded = dx.to(dx_ptr.dtype.element_ty)
        at = tl.cast(row, tl.int64) * channels
        tl.store(dx_ptr + at + columns, rounded, mask=inside)
        if GATED:
            dx = rounded.to(tl.float32)
            dh = (dx * gate).to(dh_ptr.dtype.element_ty)
            tl.store(dh_ptr + at + columns, dh, mask=inside)
            if SUMS:
                gate_sum += dx * h_ahead.to(tl.float32)
                h_ahead = _row_at(h_ptr, row + 1, h_stride, columns, more, channels)
        if SUMS:
            scale_sum += grad * normed
            shift_sum += grad
    if SUMS:
        at = slot.to(tl.int64) * channels + columns
        tl.store(scale_partial_ptr + at, scale_sum, mask=inside)
        tl.store(shift_partial_ptr + at, shift_sum, mask=inside)
        if GATED:
            tl.store(gate_partial_ptr + at, gate_sum, mask=inside)
