"""Device functions of one row's LayerNorm, shared by the norm alone and the norm of a sum."""

from __future__ import annotations

import triton
import triton.language as tl

from levers.kernels.rounding_triton import left_out


@triton.jit  # type: ignore[untyped-decorator]
def sample_row(row_ptr, columns, inside, PLUS_ONE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A sample's row in fp32; ``1 + row`` is rounded to the row's dtype, as published."""
    row = tl.load(row_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if PLUS_ONE:
        row = (1.0 + row).to(row_ptr.dtype.element_ty).to(tl.float32)
    return row


@triton.jit  # type: ignore[untyped-decorator]
def norm_of_row(row, inside, count, eps, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """An fp32 row normalised, with its mean and its reciprocal deviation.

    ``EXACT``: mean and deviation with what their roundings left out, for rows kept in fp32. The
    deviation that is returned is the nearest fp32 value: a row's error is in all its terms of the
    scale's gradient, which for an fp32 scale are rounded nowhere else as much.
    """
    mean = tl.div_rn(tl.sum(row, axis=0), count)
    gap = tl.where(inside, row - mean, 0.0)
    if EXACT:
        gap = tl.where(inside, gap - tl.div_rn(tl.sum(gap, axis=0), count), 0.0)
    variance = tl.div_rn(tl.sum(gap * gap, axis=0), count) + eps
    rstd = tl.rsqrt(variance)
    rest = left_out(variance, rstd)
    normed = tl.fma(gap, rstd, gap * rest) if EXACT else gap * (rstd + rest)
    return normed, mean, rstd + rest


@triton.jit  # type: ignore[untyped-decorator]
def norm_gradient(inner, normed, rstd, count, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient of a row from that of its norm; ``EXACT`` rounds the two means correctly.

    A correctly rounded division is a call that costs a program half of its registers again.
    """
    total, along = tl.reduce((inner, inner * normed), 0, _add_both)
    if EXACT:
        total, along = tl.div_rn(total, count), tl.div_rn(along, count)
    else:
        total, along = total / count, along / count
    return rstd * (inner - total - normed * along)


@triton.jit
def _add_both(a, b, c, d):  # type: ignore[no-untyped-def]
    """Two sums in one walk across the warps, which is what a row waits for."""
    return a + c, b + d
