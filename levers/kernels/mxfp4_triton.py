"""Device code of products with MXFP4 weights: each packed word is read once and decoded in place.

Shapes: N rows of activations (up to 8, 16 or 32), E outputs, C inputs, W warps of a program, M
tiles of 16 outputs; units, lanes and words are :mod:`.mxfp4_layout`'s.

A program has ``16 M`` outputs of all rows, and its warps share the inputs: warp w takes units w,
w + W, ... of each tile, decodes them in registers (:mod:`.mxfp4_decode_triton`) and multiplies with
``tl.dot``, batched over the warps, which sums in fp32. At the end the warps' sums are added in a
fixed order. So the inputs are divided inside a program and never over programs: no partial sum goes
to memory, nobody waits for a ticket.

A unit of words is two loads of 16 bytes a lane. Those of the next step are on their way while a
step is decoded; a warp begins with two units, 2.2 KB, so that the 12 to 32 warps of an SM have 26
to 70 KB under way at once, of the 23 KB that 4.3 TB/s at 0.7 us need on each of 132 SMs. EARLY is a
programmatic dependent launch: the first words, which no launch writes, are asked for while the
launch before still runs.

Bytes: 0.53 EC, 2 NC (from the first-level cache of each SM, once for ``16 M`` outputs) and 2 NE.
For the 100.9 M weights of a block of the 4 B model that is 53.6 MB, 12.5 us at 4.3 TB/s.
"""

from __future__ import annotations

import triton
import triton.language as tl

from levers.kernels.mxfp4_decode_triton import operand, paired


@triton.jit  # type: ignore[untyped-decorator]
def gated(gate, up, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """``silu(gate) * up`` in fp32, with the roundings of the three operations that it replaces."""
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    return (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up


@triton.jit  # type: ignore[untyped-decorator]
def row_pointers(  # type: ignore[no-untyped-def]
    x_ptr, rows, x_stride, W: tl.constexpr, N: tl.constexpr
):
    """Where a step's activations lie, ``[32, W, N / 8, 4, 8]``; rows beyond are the last one."""
    lane = tl.arange(0, 32)
    n = tl.minimum(tl.arange(0, N // 8)[None, :] * 8 + (lane // 4)[:, None], rows - 1)
    first = (lane % 4)[:, None] * 32 + tl.arange(0, W)[None, :] * 128
    at = (n * x_stride)[:, None, :] + first[:, :, None]
    eights = (tl.arange(0, 4) * 8)[:, None] + tl.arange(0, 8)[None, :]
    return x_ptr + at[:, :, :, None, None] + eights[None, None, None, :, :]


@triton.jit  # type: ignore[untyped-decorator]
def unit_sums(  # type: ignore[no-untyped-def]
    x_ptr,
    words_ptr,
    codes_ptr,
    tile,
    inputs,
    rows,
    units,
    x_stride,
    W: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    OLDER: tl.constexpr,
    QUAD: tl.constexpr,
    RAGGED: tl.constexpr,
    PADDED: tl.constexpr,
    EARLY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Products of some tiles, fp32 [16 M, N], summed over the warps of a program."""
    w, lane = tl.arange(0, W), tl.arange(0, 32)
    at = tile[None, :].to(tl.int64) * units + w[:, None]
    lane_words = (tl.arange(0, 2) * 128)[:, None] + tl.arange(0, 128)[None, :]
    words_ptr += (at * 256)[:, :, None, None] + lane_words[None, None, :, :]
    codes_ptr += (at * 32)[None, :, :] + lane[:, None, None]
    x_ptr = row_pointers(x_ptr, rows, x_stride, W, N)
    column = ((lane % 4)[:, None] * 32 + w[None, :] * 128)[:, :, None, None, None]
    warp, warp_of_codes = w[:, None, None, None], w[None, :, None]
    if not OLDER:
        words_ptr, warp = tl.permute(words_ptr, (2, 1, 0, 3)), tl.permute(warp, (2, 1, 0, 3))
        codes_ptr = tl.permute(codes_ptr, (2, 1, 0))
        x_ptr, column = tl.permute(x_ptr, (3, 2, 1, 0, 4)), tl.permute(column, (3, 2, 1, 0, 4))
    # Not contiguous, says the hint: two codes loaded at once would be two lanes' in one.
    codes_ptr = tl.max_contiguous(codes_ptr, (1, 1, 1))
    words = tl.load(words_ptr, mask=warp < units, other=0)
    codes = tl.load(codes_ptr, mask=warp_of_codes < units, other=0)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.full((W, 16 * M, N), 0.0, tl.float32)
    for first in range(0, units, W):
        words_ptr += 256 * W
        codes_ptr = tl.max_contiguous(codes_ptr + 32 * W, (1, 1, 1))
        left = units - first - W
        if RAGGED:
            next_words = tl.load(words_ptr, mask=warp < left, other=0)
            next_codes = tl.load(codes_ptr, mask=warp_of_codes < left, other=0)
        else:
            next_words = tl.load(words_ptr, mask=warp < left)
            next_codes = tl.load(codes_ptr, mask=warp_of_codes < left)
        if RAGGED or PADDED:
            x = tl.load(x_ptr, mask=first * 128 + column < inputs, other=0.0)
        else:
            x = tl.load(x_ptr)
        x_ptr += 128 * W
        weights = operand(words, codes, W, M, OLDER, QUAD, x_ptr.dtype.element_ty)
        total = tl.dot(weights, paired(x, W, N, OLDER, QUAD), total, input_precision=PRECISION)
        words, codes = next_words, next_codes
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=("rows", "tiles", "units"))  # type: ignore[untyped-decorator]
def unit_product(  # type: ignore[no-untyped-def]
    x_ptr,
    words_ptr,
    codes_ptr,
    bias_ptr,
    residual_ptr,
    squares_ptr,
    out_ptr,
    outputs,
    inputs,
    rows,
    tiles,
    units,
    x_stride,
    W: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    OLDER: tl.constexpr,
    QUAD: tl.constexpr,
    RAGGED: tl.constexpr,
    PADDED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SQUARES: tl.constexpr,
    GATE: tl.constexpr,
    EARLY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program i: ``16 M`` outputs; half as many with GATE, where M counts the tiles of both halves.

    RAGGED: the units are no multiple of W. PADDED: the inputs are no multiple of 128. What is to be
    added is added to the fp32 sum, which is rounded once. SQUARES leaves the sum of the rounded
    outputs' squares for each program and row, for the RMS norm that comes next.
    """
    OWN: tl.constexpr = M // 2 if GATE else M
    m = tl.arange(0, M)
    tile = tl.minimum(tl.program_id(0) * OWN + m % OWN, tiles - 1) + m // OWN * tiles
    sums = unit_sums(
        x_ptr, words_ptr, codes_ptr, tile, inputs, rows, units, x_stride,
        W, M, N, OLDER, QUAD, RAGGED, PADDED, EARLY, PRECISION,
    )  # fmt: skip
    if GATE:
        gate, up = tl.split(tl.permute(tl.reshape(sums, (2, 16 * OWN, N)), (1, 2, 0)))
        sums = gated(gate, up, out_ptr.dtype.element_ty)
    e, n = tl.program_id(0) * 16 * OWN + tl.arange(0, 16 * OWN), tl.arange(0, N)
    keep = (e < outputs)[:, None] & (n < rows)[None, :]
    at = n.to(tl.int64)[None, :] * outputs + e[:, None]
    if BIAS:
        sums += tl.load(bias_ptr + e, mask=e < outputs, other=0.0).to(tl.float32)[:, None]
    if RESIDUAL:
        sums += tl.load(residual_ptr + at, mask=keep, other=0.0).to(tl.float32)
    out = sums.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, out, mask=keep)
    if SQUARES:
        wide = tl.where(keep, out.to(tl.float32), 0.0)
        squares = tl.sum(wide * wide, axis=0)
        tl.store(squares_ptr + tl.program_id(0) * rows + n, squares, mask=n < rows)
