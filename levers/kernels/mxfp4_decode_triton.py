"""Device code that turns packed MXFP4 words into operands of tensor cores, in registers.

Shapes: W warps along the inputs, M tiles of 16 outputs; the rest is :mod:`.mxfp4_layout`'s.

A lane's words are that lane's operands, so that nothing is exchanged between threads: every reshape
and permutation below only renames registers. The compiler must see that. It does where each tensor
is loaded in the layout that the product asks for. Dimensions along which nothing is contiguous are
laid over the threads in an order that Triton has changed: up to 3.6 (``OLDER``) the first one
first, then the last one first. So tensors come with lanes before warps before the rest, or the
other way round. Up to 3.7 (``QUAD``) a lane has four inputs of a product side by side where an
operand was joined from parts, later two; both operands have the same, so that the terms are.

Instructions for the 16 elements of two words, of a lane: 8 rotations (two of them by nothing, four
multiplications by a power of two on the side of the FMA units), 9 logical, 8 multiplications of
pairs in bf16 by the scale, which are exact. That is 1.6 for a weight; with loads, products, scales
and the loop 2.4 (``python -m benchmarks.mxfp4_instructions 1x4x1``: 155 for 64 weights of a lane),
2.3 with two tiles a program; a whole program of five steps in one round takes 2.5. It was 3.9 where
words were planes of inputs and operands went through shared memory. Reading at 4.3 TB/s leaves time
for 3.7 on an SM's four schedulers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from levers.kernels import mxfp4_layout

MASK = tl.constexpr(mxfp4_layout.MASK)
SPARE_MASK = tl.constexpr(mxfp4_layout.SPARE_MASK)
SPARE_SHIFT = tl.constexpr(mxfp4_layout.SPARE_SHIFT)
SLOPE, OFFSET = tl.constexpr(mxfp4_layout.SLOPE), tl.constexpr(mxfp4_layout.OFFSET)
PAIR_PRODUCT = tl.constexpr("{.reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 $0, $1, $2, z;}")
"""A product is a fused one with -0 added, which the machine does not add; the plain one needs
sm_90."""


@triton.jit  # type: ignore[untyped-decorator]
def left(words, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Words (uint32) rotated to the left: one instruction."""
    return (words << BITS) | (words >> (32 - BITS))


@triton.jit
def spare_of(first, second):  # type: ignore[no-untyped-def]
    """What three registers of each of two words leave: the bits of two more, in one word."""
    lower = second << SPARE_SHIFT
    return ((first ^ lower) & SPARE_MASK) ^ lower


@triton.jit  # type: ignore[untyped-decorator]
def scaled_pair(pair, scale, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both elements of registers (uint32) times their scale, ``[..., 2]``, in a dtype.

    In bf16 by one instruction for the two, which takes subnormal numbers as they are; what is wider
    is multiplied in fp32, which holds the bits of a bf16 number in its upper half.
    """
    if dtype == tl.bfloat16:
        both = tl.inline_asm_elementwise(
            PAIR_PRODUCT, "=r,r,r", [pair, scale], dtype=tl.int32, is_pure=True, pack=1
        )
        low = both.to(tl.int16).to(tl.bfloat16, bitcast=True)
        high = (both >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        wide = (scale & 0xFFFF0000).to(tl.float32, bitcast=True)
        low = ((pair << 16).to(tl.float32, bitcast=True) * wide).to(dtype)
        high = ((pair & 0xFFFF0000).to(tl.float32, bitcast=True) * wide).to(dtype)
    return tl.join(low, high)


@triton.jit  # type: ignore[untyped-decorator]
def four_registers(word, spare, TURN: tl.constexpr, upper, lower, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The registers of one word, ``[..., p, b, h]``, times the scales of their rows."""
    none = scaled_pair(word & MASK, upper, dtype)
    one = scaled_pair((word << 4) & MASK, upper, dtype)
    two = scaled_pair(left(word, 26) & MASK, lower, dtype)
    three = scaled_pair(left(spare, TURN) & MASK, lower, dtype)
    return tl.join(tl.join(none, one), tl.join(two, three))


@triton.jit  # type: ignore[untyped-decorator]
def scale_pairs(codes, W: tl.constexpr, M: tl.constexpr):  # type: ignore[no-untyped-def]
    """``2 ** (code - 1)`` of bytes 0 and 2, in both halves of words ``[W, M, 2, 8, 4, 1]``."""
    both = (codes[:, :, :, None] >> (tl.arange(0, 2) * 16)[None, None, None, :]) & 0xFF
    pairs = (both * SLOPE + OFFSET).to(tl.uint32, bitcast=True)
    return tl.permute(tl.reshape(pairs, (8, 4, W, M, 2, 1)), (2, 3, 4, 0, 1, 5))


@triton.jit  # type: ignore[untyped-decorator]
def operand(  # type: ignore[no-untyped-def]
    words,
    codes,
    W: tl.constexpr,
    M: tl.constexpr,
    OLDER: tl.constexpr,
    QUAD: tl.constexpr,
    dtype: tl.constexpr,
):
    """Weights ``[W, 16 M, 128]`` of words ``[W, M, 2, 128]`` and codes int32 ``[32, W, M]``.

    Not OLDER: of words ``[2, M, W, 128]`` and codes ``[M, W, 32]``.
    """
    if not OLDER:
        words, codes = tl.permute(words, (2, 1, 0, 3)), tl.permute(codes, (2, 1, 0))
    upper, lower = scale_pairs(codes, W, M), scale_pairs(codes >> 8, W, M)
    split = tl.reshape(words.to(tl.uint32, bitcast=True), (W, M, 2, 8, 4, 2, 2))
    first, second = tl.split(split)
    spare = spare_of(first, second)
    weights = tl.join(
        four_registers(first, spare, 6, upper, lower, dtype),
        four_registers(second, spare, 28, upper, lower, dtype),
    )
    # W M j g t q p b h i
    if QUAD:
        weights = tl.permute(weights, (0, 1, 8, 3, 2, 5, 7, 4, 9, 6))
    else:
        weights = tl.permute(weights, (0, 1, 8, 3, 2, 5, 9, 7, 4, 6))
    return tl.reshape(weights, (W, 16 * M, 128))


@triton.jit  # type: ignore[untyped-decorator]
def paired(x, W: tl.constexpr, N: tl.constexpr, OLDER: tl.constexpr, QUAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Activations ``[32, W, N / 8, 4, 8]`` as ``[W, 128, N]``, in the weights' order of inputs.

    Not OLDER: ``[4, N / 8, W, 32, 8]``.
    """
    if not OLDER:
        x = tl.permute(x, (3, 2, 1, 0, 4))
    split = tl.reshape(x, (8, 4, W, N // 8, 2, 2, 2, 2, 2))
    # n t W N j q i b p
    if QUAD:
        split = tl.permute(split, (2, 4, 5, 7, 1, 6, 8, 3, 0))
    else:
        split = tl.permute(split, (2, 4, 5, 6, 7, 1, 8, 3, 0))
    return tl.reshape(split, (W, 128, N))
