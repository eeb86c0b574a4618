"""Device code of products with MXFP4 weights: each packed word is read once and decoded in place.

Shapes: N rows of activations (up to 8, 16 or 32), E outputs, C inputs, W warps of a program, M
tiles of 16 outputs; units, lanes and words are :mod:`.mxfp4_layout`'s.

A program has ``16 M`` outputs of all rows, and its warps share the inputs: warp w takes units w,
w + W, ... of each tile, decodes them in registers (:mod:`.mxfp4_decode_triton`) and multiplies with
``tl.dot``, batched over the warps, which sums in fp32. At the end the warps' sums are added in a
fixed order. So the inputs are divided inside a program and never over programs: no partial sum goes
to memory, nobody waits for a ticket.

A unit of words is two loads of 16 bytes a lane and a load of 4 bytes of codes. Those of D steps are
on their way at any time: with depth 5 and 8 warps an SM 43 KB, where 4.3 TB/s at 0.7 us
need 23 KB on each of 132 SMs. Where D steps are all that a warp has, everything is asked for at
once. EARLY is a programmatic dependent launch: the first words, which no launch writes, are asked
for while the launch before still runs.

Bytes: 0.53 EC, 2 NC (from the first-level cache of each SM, once for ``16 M`` outputs) and 2 NE.
For the 100.9 M weights of a block of the 4 B model that is 53.6 MB, 12.5 us at 4.3 TB/s.
"""

from __future__ import annotations

import triton
import triton.language as tl

from levers.kernels.mxfp4_decode_triton import operand, paired

OWN_BARRIER = tl.constexpr(
    "{.reg .b32 own; mov.u32 own, %tid.x; shr.u32 own, own, 5; add.u32 own, own, 1; "
    "bar.sync own, 32; mov.b32 $0, $1;}"
)


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
    lane, eight = tl.arange(0, 32), tl.arange(0, 4)
    n = tl.minimum(tl.arange(0, N // 8)[None, :] * 8 + (lane // 4)[:, None], rows - 1)
    first = (lane % 4)[:, None] * 16 + tl.arange(0, W)[None, :] * 128
    at = (n * x_stride)[:, None, :] + first[:, :, None]
    inside = (eight // 2 * 64 + eight % 2 * 8)[:, None] + tl.arange(0, 8)[None, :]
    return x_ptr + at[:, :, :, None, None] + inside[None, None, None, :, :]


@triton.jit  # type: ignore[untyped-decorator]
def unit_pointers(  # type: ignore[no-untyped-def]
    words_ptr, codes_ptr, tile, units, W: tl.constexpr, OLDER: tl.constexpr
):
    """Where the first step's words ``[W, M, 2, 128]`` and codes ``[32, W, M]`` lie, and the warps.

    Not OLDER: the other way round but for the last dimension of words (:func:`.operand`).
    """
    w, lane = tl.arange(0, W), tl.arange(0, 32)
    at = tile[None, :].to(tl.int64) * units + w[:, None]
    inside = (tl.arange(0, 2) * 128)[:, None] + tl.arange(0, 128)[None, :]
    words_ptr += (at * 256)[:, :, None, None] + inside[None, None, :, :]
    codes_ptr += (at * 16)[None, :, :] + (lane // 2)[:, None, None]
    warp = w[:, None, None, None]
    if not OLDER:
        words_ptr, warp = tl.permute(words_ptr, (2, 1, 0, 3)), tl.permute(warp, (2, 1, 0, 3))
        codes_ptr = tl.permute(codes_ptr, (2, 1, 0))
    return words_ptr, codes_ptr, warp, w[None, :, None]


@triton.jit  # type: ignore[untyped-decorator]
def loaded(  # type: ignore[no-untyped-def]
    words_ptr, codes_ptr, warp, codes_warp, first, units, RAGGED: tl.constexpr
):
    """Words and codes of units ``first + w``; where there are none, nothing, RAGGED: zeros."""
    words_ptr += first * 256
    # Not contiguous, says the hint: two lanes' codes would be loaded as one lane's.
    codes_ptr = tl.max_contiguous(codes_ptr + first * 16, (1, 1, 1))
    if RAGGED:
        words = tl.load(words_ptr, mask=warp < units - first, other=0)
        codes = tl.load(codes_ptr, mask=codes_warp < units - first, other=0)
    else:
        words = tl.load(words_ptr, mask=warp < units - first)
        codes = tl.load(codes_ptr, mask=codes_warp < units - first)
    return words, codes


@triton.jit  # type: ignore[untyped-decorator]
def rows_loaded(  # type: ignore[no-untyped-def]
    x_ptr, inputs, first, units,
    W: tl.constexpr, OLDER: tl.constexpr, RAGGED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Activations of units ``first + w``: zeros beyond the inputs, where RAGGED or PADDED."""
    if RAGGED or PADDED:
        lane, eight = tl.arange(0, 32), tl.arange(0, 4)
        column = (lane % 4)[:, None] * 16 + tl.arange(0, W)[None, :] * 128
        inside = eight // 2 * 64 + eight % 2 * 8
        column = column[:, :, None, None, None] + inside[None, None, None, :, None]
        if not OLDER:
            column = tl.permute(column, (3, 2, 1, 0, 4))
        x = tl.load(x_ptr + first * 128, mask=column < inputs - first * 128, other=0.0)
    else:
        x = tl.load(x_ptr + tl.minimum(first, units - W) * 128)
    return x


@triton.jit  # type: ignore[untyped-decorator]
def after_loads(first, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same number, for the machine only once the loads above are on their way.

    Left to itself the assembler puts a load off until its registers' old content is used up, or
    multiplies what has come before it asks for the rest: a warp would wait for memory once a step.
    It moves no load over a barrier. So each warp meets itself at one of its own (1 to 15, beside
    that of the program), and the activations, without which nothing is multiplied, come after it.
    """
    if dtype == tl.bfloat16:
        first = tl.inline_asm_elementwise(
            OWN_BARRIER, "=r,r", [first], dtype=tl.int32, is_pure=False, pack=1
        )
    return first


@triton.jit  # type: ignore[untyped-decorator]
def unit_sums(  # type: ignore[no-untyped-def]
    x_ptr, words_ptr, codes_ptr, tile, inputs, rows, units, x_stride,
    W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    OLDER: tl.constexpr, QUAD: tl.constexpr, RAGGED: tl.constexpr, PADDED: tl.constexpr,
    ONCE: tl.constexpr, EARLY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Products of some tiles, fp32 [W, 16 M, N], those of each warp.

    D steps' words are on their way at any time. ONCE: there are no more than D steps; then the
    activations are a step ahead, which they need not be in a loop with its barriers.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    words_ptr, codes_ptr, warp, codes_warp = unit_pointers(
        words_ptr, codes_ptr, tile, units, W, OLDER
    )
    x_ptr = row_pointers(x_ptr, rows, x_stride, W, N)
    if not OLDER:
        x_ptr = tl.permute(x_ptr, (3, 2, 1, 0, 4))
    ring = ()
    for d in tl.static_range(D):
        new = loaded(words_ptr, codes_ptr, warp, codes_warp, d * W, units, RAGGED)
        ring = ring + (new,)  # type: ignore[assignment]  # noqa: RUF005
    if EARLY == 1:
        tl.extra.cuda.gdc_launch_dependents()
    if EARLY:
        tl.extra.cuda.gdc_wait()
    total = tl.full((W, 16 * M, N), 0.0, tl.float32)
    if ONCE:
        at = after_loads(units * 0, dtype)
        x = rows_loaded(x_ptr, inputs, at, units, W, OLDER, RAGGED, PADDED)
        for d in tl.static_range(D):
            words, codes = ring[d]  # type: ignore[var-annotated]
            weights = operand(words, codes, W, M, OLDER, QUAD, dtype)
            right = paired(x, W, N, OLDER, QUAD)
            if d + 1 < D:
                at += W
                x = rows_loaded(x_ptr, inputs, at, units, W, OLDER, RAGGED, PADDED)
            total = tl.dot(weights, right, total, input_precision=PRECISION)
    else:
        for first in range(0, units, D * W):
            following = ()
            for d in tl.static_range(D):
                at = first + d * W
                new = loaded(words_ptr, codes_ptr, warp, codes_warp, at + D * W, units, RAGGED)
                following = following + (new,)  # type: ignore[assignment]  # noqa: RUF005
                at = after_loads(at, dtype)
                x = rows_loaded(x_ptr, inputs, at, units, W, OLDER, RAGGED, PADDED)
                words, codes = ring[d]
                weights = operand(words, codes, W, M, OLDER, QUAD, dtype)
                right = paired(x, W, N, OLDER, QUAD)
                total = tl.dot(weights, right, total, input_precision=PRECISION)
            ring = following
    if EARLY == 2:
        tl.extra.cuda.gdc_launch_dependents()
    return total


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
    D: tl.constexpr,
    OLDER: tl.constexpr,
    QUAD: tl.constexpr,
    RAGGED: tl.constexpr,
    PADDED: tl.constexpr,
    ONCE: tl.constexpr,
    SINGLE: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SQUARES: tl.constexpr,
    GATE: tl.constexpr,
    EARLY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program i: ``16 M`` outputs; half as many with GATE, where M counts the tiles of both halves.

    RAGGED: the steps are no whole rounds of D. PADDED: the inputs are no multiple of 128. SINGLE:
    there is one row, which stands in all columns; an eighth of each is added, which loses nothing.
    What is to be added is added to the fp32 sum, which is rounded once. SQUARES leaves the sum of
    the rounded outputs' squares for each program and row, for the RMS norm that comes next.
    """
    OWN: tl.constexpr = M // 2 if GATE else M
    m = tl.arange(0, M)
    tile = tl.minimum(tl.program_id(0) * OWN + m % OWN, tiles - 1) + m // OWN * tiles
    total = unit_sums(
        x_ptr, words_ptr, codes_ptr, tile, inputs, rows, units, x_stride,
        W, M, N, D, OLDER, QUAD, RAGGED, PADDED, ONCE, EARLY, PRECISION,
    )  # fmt: skip
    COLUMNS: tl.constexpr = 1 if SINGLE else N
    if SINGLE:
        total = tl.sum(total * (1.0 / N), axis=2)[:, :, None]
    sums = tl.sum(total, axis=0)
    if GATE:
        gate, up = tl.split(tl.permute(tl.reshape(sums, (2, 16 * OWN, COLUMNS)), (1, 2, 0)))
        sums = gated(gate, up, out_ptr.dtype.element_ty)
    e, n = tl.program_id(0) * 16 * OWN + tl.arange(0, 16 * OWN), tl.arange(0, COLUMNS)
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
