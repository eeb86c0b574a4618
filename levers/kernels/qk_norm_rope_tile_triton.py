"""Tiles of rows of one head, as the forward and the backward of the fused norm and RoPE see them.

A tile is loaded as it lies (16-byte loads of bf16) and split into the even and the odd channels in
registers: ``[ROWS, PAIRS]`` in fp32 each. Offsets of rows are 64-bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from levers.kernels.qk_norm_rope import SMALLEST_NORM
from levers.kernels.rounding_triton import left_out

_SMALLEST_NORM = tl.constexpr(SMALLEST_NORM)


@triton.jit  # type: ignore[untyped-decorator]
def load_pairs(ptr, at, keep, ROWS: tl.constexpr, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Even and odd channels of a tile."""
    tile = tl.load(ptr + at, mask=keep, other=0.0).to(tl.float32)
    return tl.split(tl.reshape(tile, (ROWS, PAIRS, 2)))


@triton.jit  # type: ignore[untyped-decorator]
def store_pairs(  # type: ignore[no-untyped-def]
    ptr, at, keep, even, odd, ROWS: tl.constexpr, PAIRS: tl.constexpr
):
    """Round a tile to the pointer's type and write it."""
    tile = tl.reshape(tl.join(even, odd), (ROWS, 2 * PAIRS))
    tl.store(ptr + at, tile.to(ptr.dtype.element_ty), mask=keep)


@triton.jit  # type: ignore[untyped-decorator]
def load_turns(  # type: ignore[no-untyped-def]
    turn_ptr, rows, count, dim, TURN: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr
):
    """Cosines and sines of a tile of rows; 1 and 0, which nobody reads, where nothing is turned."""
    if TURN:
        columns = tl.arange(0, 2 * PAIRS)
        keep = (rows < count)[:, None] & (columns < dim)[None, :]
        cos, sin = load_pairs(turn_ptr, rows[:, None] * dim + columns[None, :], keep, ROWS, PAIRS)
    else:
        cos, sin = 1.0, 0.0
    return cos, sin


@triton.jit  # type: ignore[untyped-decorator]
def load_scales(gamma_ptr, head, dim, root, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    """``gamma * sqrt(D)`` of a head's even and odd channels; ``root`` may come in as fp64."""
    even = 2 * tl.arange(0, PAIRS)
    at = gamma_ptr + head * dim + even
    first = tl.load(at, mask=even < dim, other=0.0).to(tl.float32)
    second = tl.load(at + 1, mask=even < dim, other=0.0).to(tl.float32)
    root = tl.full((), root, tl.float32)
    return first * root, second * root


@triton.jit  # type: ignore[untyped-decorator]
def inverse_norm(even, odd, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 / norm of each row, what its rounding left out, and whether the norm is the clamp's.

    The remainder is 0 unless ``EXACT``, for results that are rounded to 16 bits. A NaN stays one.
    """
    total = tl.sum(even * even + odd * odd, axis=1)
    norm = tl.sqrt_rn(total)
    clamped = norm <= _SMALLEST_NORM
    norm = tl.where(clamped, _SMALLEST_NORM, norm)
    inverse = tl.div_rn(tl.full(norm.shape, 1.0, tl.float32), norm)
    rest = tl.zeros_like(inverse)
    if EXACT:
        rest = tl.where(norm > _SMALLEST_NORM, left_out(total, inverse), 0.0)
    return inverse, rest, clamped


@triton.jit  # type: ignore[untyped-decorator]
def times_inverse(x, inverse, rest, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile over its rows' norms; with ``EXACT`` rounded once, as a division is."""
    return tl.fma(x, inverse[:, None], x * rest[:, None]) if EXACT else x * inverse[:, None]
