"""Triton code that merges partial results of split-KV decode, ``o = sum_x softmax_x(lse_x) o_x``.

``merge_kernel`` is a launch of its own; ``merge_last`` is called by the split program that arrives
last. Log-sum-exps are in base 2. A split without a token has ``lse = -inf`` and weighs nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def merge_last(  # type: ignore[no-untyped-def]
    out_ptr,
    o_ptr,
    lse_ptr,
    first_head,
    rows,
    splits,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Merge the partials of ``GROUP`` neighbouring rows from ``first_head``.

    They were written by other programs, so they are read past the first-level cache.
    """
    g = tl.arange(0, HEADS)
    d = tl.arange(0, D)
    every = tl.arange(0, SPLITS)
    lse = tl.load(
        lse_ptr + every[None, :] * rows + first_head + g[:, None],
        mask=(every < splits)[None, :] & (g < GROUP)[:, None],
        other=float("-inf"),
        cache_modifier=".cg",
    )
    top = tl.max(lse, 1)
    shift = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(lse - shift[:, None]), 1)
    acc = tl.full([HEADS, D], 0.0, dtype=tl.float32)
    for first in range(0, splits, CHUNK):
        x = first + tl.arange(0, CHUNK)
        there = (x < splits)[None, :] & (g < GROUP)[:, None]
        at = x[None, :] * rows + first_head + g[:, None]
        some = tl.load(lse_ptr + at, mask=there, other=float("-inf"), cache_modifier=".cg")
        weight = tl.exp2(some - shift[:, None])
        o = tl.load(
            o_ptr + at[:, :, None] * D + d[None, None, :],
            mask=there[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        acc += tl.sum(o * weight[:, :, None], 1)
    merged = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        out_ptr + (first_head + g)[:, None] * D + d[None, :],
        merged.to(out_ptr.dtype.element_ty),
        mask=(g < GROUP)[:, None],
    )


@triton.jit(do_not_specialize=("rows", "splits"))  # type: ignore[untyped-decorator]
def merge_kernel(  # type: ignore[no-untyped-def]
    o_ptr,
    lse_ptr,
    out_ptr,
    rows,
    splits,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One program merges one (sequence, query head)."""
    row = tl.program_id(0)
    x = tl.arange(0, SPLITS)
    d = tl.arange(0, D)
    lse = tl.load(lse_ptr + x * rows + row, mask=x < splits, other=float("-inf"))
    top = tl.max(lse, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.exp2(lse - shift)
    total = tl.sum(weight, 0)
    o = tl.load(
        o_ptr + (x[:, None] * rows + row) * D + d[None, :], mask=(x < splits)[:, None], other=0.0
    )
    merged = tl.sum(o * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * D + d, merged.to(out_ptr.dtype.element_ty))
