"""Device code of a decode step's matrix products: few rows, and every weight read once.

Shapes: N rows of activations, E outputs, C inputs. Each output row of the weights is one contiguous
run of C values, and a program takes ``ROWS`` of them in tiles of ``TILE`` inputs.

- :func:`_one_row` (N = 1) multiplies element by element in fp32 and sums at the end: threads lie
  along the inputs, so that a warp reads whole lines of 512 bytes, and no product unit is left idle
  by 15 padded rows.
- :func:`_few_rows` (N up to 32) is a ``tl.dot`` with the activations padded to 16 or 32 rows.

Before the product, ``x + delta`` can be added and RMS-normed: the scale of the norm is one number a
row, so the tiles are multiplied by the norm's weight as they come and the scale is applied to the
result; no pass over the row has to end before the weights are read. For a ``tl.dot`` such a tile is
taken apart into two numbers of the weights' dtype, high and low, and multiplied twice: rounding it
once would lose bits that the separate norm keeps where its values happen to be round. Each program
computes this anew (the row lies in the second-level cache), and the first one writes the sum. After
the product, pairs of gate and up rows can be passed through SwiGLU in registers.

What decides the time is how many bytes are under way: 4.3 TB/s at about 0.7 us from memory are
3 MB, or 23 KB for each of 132 SMs. So the first tile of weights is loaded before anything else
(with programmatic dependent launch even before the launch in front has ended, since weights never
change), later tiles are prefetched ``STAGES - 1`` deep, and the grid gives each SM several
programs.

Where few outputs would leave SMs idle, the inputs are split over programs. Each leaves fp32 partial
sums, and the one that arrives last (a ticket tells) adds them in the order of the splits and
resets the ticket, so that a result repeats exactly and a captured launch can be replayed.

:func:`load_weight_tile` is the one place that knows how weights are stored: another format needs
another loader of the same signature that returns the tile in the activations' dtype.
"""

from __future__ import annotations

import triton
import triton.language as tl

UP = tl.constexpr(2.0**60)
"""A stream that is not scaled yet is multiplied by this before it is rounded for a product, and the
scale by its inverse, which is exact: so small streams lose no bits to subnormal numbers."""


@triton.jit  # type: ignore[untyped-decorator]
def load_weight_tile(  # type: ignore[no-untyped-def]
    weight_ptr,
    row,
    column,
    row_stride,
    keep,
    C: tl.constexpr,
    TILE: tl.constexpr,
):
    """Values ``[ROWS, TILE]`` of the weights: rows ``row`` where ``keep``, inputs ``column``."""
    at = row.to(tl.int64)[:, None] * row_stride + column[None, :]
    if C % TILE == 0:
        tile = tl.load(weight_ptr + at, mask=keep[:, None], other=0.0)
    else:
        tile = tl.load(weight_ptr + at, mask=keep[:, None] & (column < C)[None, :], other=0.0)
    return tile


@triton.jit  # type: ignore[untyped-decorator]
def _input_tile(  # type: ignore[no-untyped-def]
    x_ptr,
    delta_ptr,
    norm_ptr,
    sum_ptr,
    at,
    column,
    keep,
    program,
    NORM: tl.constexpr,
    DELTA: tl.constexpr,
):
    """A tile of the stream in fp32, and the same times the norm's weight, the product's operand."""
    x = tl.load(x_ptr + at, mask=keep, other=0.0)
    stream = x.to(tl.float32)
    if DELTA:
        stream += tl.load(delta_ptr + at, mask=keep, other=0.0).to(tl.float32)
        rounded = stream.to(x.dtype)
        tl.store(sum_ptr + at, rounded, mask=keep & (at * 0 == program))
        stream = rounded.to(tl.float32)
    operand = stream
    if NORM:
        operand = stream * tl.load(norm_ptr + column, mask=keep, other=0.0).to(tl.float32)
    return stream, operand


@triton.jit
def _gated(gate, up):  # type: ignore[no-untyped-def]
    """``silu(gate) * up`` in fp32."""
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit  # type: ignore[untyped-decorator]
def _one_row(  # type: ignore[no-untyped-def]
    x_ptr,
    delta_ptr,
    norm_ptr,
    sum_ptr,
    weight_ptr,
    out_ptr,
    eps,
    outputs,
    row_stride,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    NORM: tl.constexpr,
    DELTA: tl.constexpr,
    SWIGLU: tl.constexpr,
    PDL: tl.constexpr,
):
    program = tl.program_id(0)
    row = program * ROWS + tl.arange(0, ROWS)
    inside = row < outputs
    column = tl.arange(0, TILE)
    first = load_weight_tile(weight_ptr, row, column, row_stride, inside, C, TILE)
    second = first
    if SWIGLU:
        second = load_weight_tile(weight_ptr, row + outputs, column, row_stride, inside, C, TILE)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    stream, operand = _input_tile(
        x_ptr, delta_ptr, norm_ptr, sum_ptr, column, column, column < C, program, NORM, DELTA
    )
    squares = stream * stream
    total = first.to(tl.float32) * operand[None, :]
    up = total
    if SWIGLU:
        up = second.to(tl.float32) * operand[None, :]
    for begin in tl.range(TILE, C, TILE, num_stages=STAGES):
        column = begin + tl.arange(0, TILE)
        first = load_weight_tile(weight_ptr, row, column, row_stride, inside, C, TILE)
        if SWIGLU:
            second = load_weight_tile(
                weight_ptr, row + outputs, column, row_stride, inside, C, TILE
            )
        stream, operand = _input_tile(
            x_ptr, delta_ptr, norm_ptr, sum_ptr, column, column, column < C, program, NORM, DELTA
        )
        squares += stream * stream
        total += first.to(tl.float32) * operand[None, :]
        if SWIGLU:
            up += second.to(tl.float32) * operand[None, :]
    y = tl.sum(total, axis=1)
    scale = 1.0
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=0) / C + eps)
        y *= scale
    if SWIGLU:
        y = _gated(y, tl.sum(up, axis=1) * scale)
    tl.store(out_ptr + row, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _few_rows(  # type: ignore[no-untyped-def]
    x_ptr,
    delta_ptr,
    norm_ptr,
    sum_ptr,
    weight_ptr,
    out_ptr,
    partial_ptr,
    ticket_ptr,
    eps,
    count,
    outputs,
    row_stride,
    C: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
    PER_SPLIT: tl.constexpr,
    NORM: tl.constexpr,
    DELTA: tl.constexpr,
    SWIGLU: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    program, split = tl.program_id(0), tl.program_id(1)
    row = program * ROWS + tl.arange(0, ROWS)
    inside = row < outputs
    n = tl.arange(0, N)
    live = n < count
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.zeros((N, ROWS), tl.float32)
    up = tl.zeros((N, ROWS), tl.float32)
    squares = tl.zeros((N,), tl.float32)
    last = tl.minimum((split + 1) * PER_SPLIT, C)
    for begin in tl.range(split * PER_SPLIT, last, TILE, num_stages=STAGES):
        column = begin + tl.arange(0, TILE)
        tile = load_weight_tile(weight_ptr, row, column, row_stride, inside, C, TILE)
        keep = live[:, None] & (column < C)[None, :]
        at = n[:, None] * C + column[None, :]
        if NORM:
            stream, operand = _input_tile(
                x_ptr,
                delta_ptr,
                norm_ptr,
                sum_ptr,
                at,
                column[None, :] + n[:, None] * 0,
                keep,
                program,
                NORM,
                DELTA,
            )
            squares += tl.sum(stream * stream, axis=1)
            operand *= UP
            high = operand.to(tile.dtype)
            low = (operand - high.to(tl.float32)).to(tile.dtype)
        else:
            high = tl.load(x_ptr + at, mask=keep, other=0.0)
            low = high
        total = tl.dot(high, tl.trans(tile), total, input_precision=PRECISION)
        if NORM:
            total = tl.dot(low, tl.trans(tile), total, input_precision=PRECISION)
        if SWIGLU:
            tile = load_weight_tile(weight_ptr, row + outputs, column, row_stride, inside, C, TILE)
            up = tl.dot(high, tl.trans(tile), up, input_precision=PRECISION)
            if NORM:
                up = tl.dot(low, tl.trans(tile), up, input_precision=PRECISION)
    if NORM:
        scale = (tl.rsqrt(squares / C + eps) / UP)[:, None]
        total *= scale
        up *= scale
    if SWIGLU:
        total = _gated(total, up)
    at = n[:, None] * outputs + row[None, :]
    keep = live[:, None] & inside[None, :]
    if SPLITS == 1:
        tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=keep)
    else:
        size = count * outputs
        tl.store(partial_ptr + split * size + at, total, mask=keep)
        tl.debug_barrier()
        ticket = tl.atomic_add(ticket_ptr + program, 1, sem="acq_rel")
        if ticket == SPLITS - 1:
            merged = tl.zeros((N, ROWS), tl.float32)
            for one in tl.static_range(SPLITS):
                merged += tl.load(
                    partial_ptr + one * size + at, mask=keep, other=0.0, cache_modifier=".cg"
                )
            tl.store(out_ptr + at, merged.to(out_ptr.dtype.element_ty), mask=keep)
            tl.store(ticket_ptr + program, 0)
