"""Device code of products with MXFP4 weights: each packed word is read once and decoded in place.

Shapes: N rows of activations, E outputs, C inputs, P the width of a plane (see ``mxfp4``).

A program has BLOCK_E outputs of all rows and walks superblocks of 8 P inputs. It reads their words,
and for each of the 8 planes multiplies ``[BLOCK_E, P]`` decoded weights by ``[P, N]`` activations
with ``tl.dot``, summing in fp32. A plane's weights sit in the same bits of every word and share one
scale for each output, so that decoding needs no exchange between threads: 11 integer operations for
the 8 elements of a word, in pairs of 16 bits (:func:`decoded_pair`), and one packed multiplication
in bf16 for a pair, which takes the value from ``2 ** -126`` times its size to the size that the
scale says. A power of two times a number of 2 bits is exact, so what the tensor cores multiply is
the quantised weight itself.

Bytes: 0.53 EC + 2 NC (from the cache, once for BLOCK_E outputs) + 2 NE. For the 100.9 M weights of
a block of the 4 B model that is 53.6 MB, 12.5 us at 4.3 TB/s.

Where the inputs are split over programs, each leaves fp32 partial sums, and the one that arrives
last (a ticket tells) adds them in the order of the splits, so that a result repeats exactly.
"""

from __future__ import annotations

import triton
import triton.language as tl

PLANES = tl.constexpr(8)


@triton.jit  # type: ignore[untyped-decorator]
def decoded_pair(words, PLACE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Planes PLACE (low half) and PLACE + 4 (high half) of words as pairs of bf16 patterns."""
    SIGNS: tl.constexpr = -0x7FFF8000
    RESTS: tl.constexpr = 0x01C001C0
    if PLACE == 0:
        pair = words & (SIGNS | RESTS)
    elif PLACE == 1:
        pair = (words << 3) & (SIGNS | RESTS)
    elif PLACE == 2:
        pair = ((words << 1) & SIGNS) | ((words << 6) & RESTS)
    else:
        pair = ((words << 2) & SIGNS) | ((words >> 3) & RESTS)
    return pair


@triton.jit  # type: ignore[untyped-decorator]
def half_bf16(pair, HIGH: tl.constexpr):  # type: ignore[no-untyped-def]
    """One half of a pair as bf16: the elements' values times ``2 ** -126``."""
    bits = (pair >> 16).to(tl.int16) if HIGH else pair.to(tl.int16)
    return bits.to(tl.bfloat16, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def half_fp32(pair, HIGH: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same in fp32, by the bits: a conversion may lose what is subnormal."""
    bits = pair & -65536 if HIGH else pair << 16
    return bits.to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def scale_up(codes, BYTE: tl.constexpr):  # type: ignore[no-untyped-def]
    """``2 ** (code - 1)`` in bf16 of one byte of words of E8M0 codes, each from 1 to 128.

    That is the scale, times the 2^126 by which the halves of a pair are too small.
    """
    exponent = ((codes >> (8 * BYTE)) & 0xFF) + 126
    return (exponent << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def weights_of(pair, scale, HIGH: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The quantised weights of one half of a pair, exact in bf16 and fp32.

    Triton's interpreter knows no arithmetic in bf16; what is wider is multiplied in fp32.
    """
    if dtype == tl.bfloat16:
        values = half_bf16(pair, HIGH) * scale
    else:
        values = (half_fp32(pair, HIGH) * scale.to(tl.float32)).to(dtype)
    return values


@triton.jit  # type: ignore[untyped-decorator]
def tile_sums(  # type: ignore[no-untyped-def]
    x_ptr,
    words_ptr,
    codes_ptr,
    e,
    outputs,
    rows,
    words_a_row,
    x_stride,
    first,
    last,
    P: tl.constexpr,
    BLOCK_E: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Products of superblocks ``first`` to ``last - 1``, fp32 [BLOCK_E, ROWS].

    ``codes_ptr`` is int32: four E8M0 codes at a time, one or two of them for a superblock.
    """
    CODES: tl.constexpr = P // 16
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    n = tl.arange(0, ROWS)
    j = tl.arange(0, P)
    present = e < outputs
    words_ptr += e.to(tl.int64)[:, None] * words_a_row + j[None, :]
    codes_ptr += e.to(tl.int64) * (words_a_row // 16)
    x_ptr += n[None, :] * x_stride + j[:, None]
    total = tl.full((BLOCK_E, ROWS), 0.0, tl.float32)
    for block in range(first, last):
        words = tl.load(words_ptr + block * P, mask=present[:, None], other=0)
        codes = tl.load(codes_ptr + block * CODES, mask=present, other=0)
        more = tl.load(codes_ptr + block * CODES + CODES - 1, mask=present, other=0)
        for plane in tl.static_range(PLANES):
            at = block * (PLANES * P) + plane * P
            x = tl.load(x_ptr + at, mask=(n < rows)[None, :], other=0.0)
            scale = scale_up(codes if plane * P < 128 else more, plane * P // 32 % 4)
            values = weights_of(decoded_pair(words, plane % 4), scale[:, None], plane >= 4, dtype)
            total = tl.dot(values, x, total, input_precision=PRECISION)
    return total


@triton.jit
def collected(partial_ptr, at, keep, stride, splits):  # type: ignore[no-untyped-def]
    """The sums that the splits have left, added in their order; past the first cache (.cg)."""
    total = tl.load(partial_ptr + at, mask=keep, other=0.0, cache_modifier=".cg")
    for split in range(1, splits):
        there = partial_ptr + split * stride + at
        total += tl.load(there, mask=keep, other=0.0, cache_modifier=".cg")
    return total


@triton.jit  # type: ignore[untyped-decorator]
def gated(gate, up, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """``silu(gate) * up`` in fp32, with the roundings of the three operations that it replaces."""
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    return (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up


@triton.jit(do_not_specialize=("rows",))  # type: ignore[untyped-decorator]
def tile_product(  # type: ignore[no-untyped-def]
    x_ptr,
    words_ptr,
    codes_ptr,
    bias_ptr,
    residual_ptr,
    squares_ptr,
    out_ptr,
    partial_ptr,
    ticket_ptr,
    outputs,
    rows,
    words_a_row,
    x_stride,
    splits,
    P: tl.constexpr,
    BLOCK_E: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SQUARES: tl.constexpr,
    SWIGLU: tl.constexpr,
    EARLY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (i, s): BLOCK_E outputs of all rows over the superblocks of split s.

    What is to be added is added to the fp32 sum, which is rounded once. SQUARES leaves the sum of
    the rounded outputs' squares for each program and row, for the RMS norm that comes next. EARLY
    is a programmatic dependent launch: the program is set up while the launch before it ends.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    e = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    superblocks = words_a_row // P
    first, last = tl.program_id(1) * superblocks // splits, superblocks
    if SPLIT:
        last = (tl.program_id(1) + 1) * superblocks // splits
    total = tile_sums(
        x_ptr, words_ptr, codes_ptr, e, outputs, rows, words_a_row, x_stride, first, last,
        P, BLOCK_E, ROWS, PRECISION,
    )  # fmt: skip
    n = tl.arange(0, ROWS)
    keep = (e < outputs)[:, None] & (n < rows)[None, :]
    at = n.to(tl.int64)[None, :] * outputs + e[:, None]
    up = total
    if SWIGLU:
        beyond = outputs.to(tl.int64) * words_a_row
        up = tile_sums(
            x_ptr, words_ptr + beyond, codes_ptr + beyond // 16, e, outputs, rows, words_a_row,
            x_stride, first, last, P, BLOCK_E, ROWS, PRECISION,
        )  # fmt: skip
    finishing = True
    if SPLIT:
        stride = rows.to(tl.int64) * outputs
        mine = partial_ptr + tl.program_id(1) * stride
        tl.store(mine + at, total, mask=keep)
        if SWIGLU:
            tl.store(mine + splits * stride + at, up, mask=keep)
        tl.debug_barrier()
        ticket_ptr += tl.program_id(0)
        finishing = tl.atomic_add(ticket_ptr, 1) == splits - 1
        if finishing:
            tl.store(ticket_ptr, 0)
            total = collected(partial_ptr, at, keep, stride, splits)
            if SWIGLU:
                up = collected(partial_ptr + splits * stride, at, keep, stride, splits)
    if finishing:
        if SWIGLU:
            total = gated(total, up, out_ptr.dtype.element_ty)
        if BIAS:
            bias = tl.load(bias_ptr + e, mask=e < outputs, other=0.0)
            total += bias.to(tl.float32)[:, None]
        if RESIDUAL:
            total += tl.load(residual_ptr + at, mask=keep, other=0.0).to(tl.float32)
        out = total.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + at, out, mask=keep)
        if SQUARES:
            wide = tl.where(keep, out.to(tl.float32), 0.0)
            squares = tl.sum(wide * wide, axis=0)
            tl.store(squares_ptr + tl.program_id(0) * rows + n, squares, mask=n < rows)
