"""Device code for values kept in fp32: what the rounding of a row's reciprocal root left out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def left_out(total, inverse):  # type: ignore[no-untyped-def]
    """``total ** -0.5 - inverse`` to first order: a step of Newton's.

    ``inverse`` is off by a few units of the last place: two roundings, or an approximate root. The
    step is taken in fp64, as its difference is below fp32's last place; it is 0 where the inverse
    is 0 or NaN.
    """
    wide = inverse.to(tl.float64)
    step = wide * (0.5 - 0.5 * total.to(tl.float64) * wide * wide)
    return tl.where(inverse > 0.0, step.to(tl.float32), 0.0)
