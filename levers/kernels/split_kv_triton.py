"""Triton kernels of split-KV paged decode attention, and their launcher.

One program is one (sequence, KV head, split). It holds the whole group of query heads as the rows
of one tile (padded to 16, the smallest row count of a tensor-core product), so that every key and
value is read once a group. The running maximum and sum are those of online softmax (Milakov and
Gimelshein 2018), in base 2. The merge program is one (sequence, query head).
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.split_kv import PagedKV, SplitPlan, Workspace

ROWS = 16
"""Smallest number of rows of a tensor-core product in Triton."""
LOG2_E = 1.4426950408889634


@triton.jit  # type: ignore[untyped-decorator]
def _split_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    lengths_ptr,
    out_ptr,
    o_ptr,
    lse_ptr,
    scale_log2,
    batch,
    table_stride,
    tokens_per_split,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SINGLE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(0) // KV_HEADS
    head = tl.program_id(0) % KV_HEADS
    split = tl.program_id(1)
    length = tl.load(lengths_ptr + row)
    start = split * tokens_per_split
    end = tl.minimum(start + tokens_per_split, length)

    g = tl.arange(0, GROUP_ROWS)
    d = tl.arange(0, D)
    t = tl.arange(0, TILE)
    heads: tl.constexpr = KV_HEADS * GROUP
    q_at = (row * heads + head * GROUP + g)[:, None] * D + d[None, :]
    q = tl.load(q_ptr + q_at, mask=(g < GROUP)[:, None], other=0.0)

    top = tl.full([GROUP_ROWS], float("-inf"), dtype=tl.float32)
    total = tl.full([GROUP_ROWS], 0.0, dtype=tl.float32)
    acc = tl.full([GROUP_ROWS, D], 0.0, dtype=tl.float32)
    for first in range(start, end, TILE):
        page = tl.load(table_ptr + row * table_stride + first // PAGE).to(tl.int64)
        base = ((page * KV_HEADS + head) * PAGE + first % PAGE) * D
        valid = first + t < end
        at = base + t[:, None] * D + d[None, :]
        k = tl.load(k_ptr + at, mask=valid[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
        s = tl.where(valid[None, :], s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(s - shift[:, None])
        keep = tl.exp2(top - shift)
        total = total * keep + tl.sum(p, 1)
        v = tl.load(v_ptr + at, mask=valid[:, None], other=0.0)
        acc = acc * keep[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        top = new_top

    weight = tl.where(total == 0.0, 1.0, total)
    acc = acc / weight[:, None]
    if SINGLE:
        tl.store(out_ptr + q_at, acc.to(out_ptr.dtype.element_ty), mask=(g < GROUP)[:, None])
    else:
        rows = batch * heads
        tl.store(o_ptr + split * rows * D + q_at, acc, mask=(g < GROUP)[:, None])
        lse = tl.where(total == 0.0, float("-inf"), top + tl.log2(weight))
        tl.store(lse_ptr + split * rows + row * heads + head * GROUP + g, lse, mask=g < GROUP)


@triton.jit  # type: ignore[untyped-decorator]
def _merge_kernel(  # type: ignore[no-untyped-def]
    o_ptr,
    lse_ptr,
    out_ptr,
    rows,
    splits,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
):
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


def launch(
    q_BHD: Tensor, kv: PagedKV, plan: SplitPlan, out_BHD: Tensor, workspace: Workspace
) -> int:
    """Launch the split kernel and, where there is more than one split, the merge.

    Returns:
        The number of splits in the grid that was launched.

    Raises:
        ValueError: a head dimension or page size that is no power of two, pages below 16 slots,
            pages that are not contiguous.
    """
    batch, heads, dim = q_BHD.shape
    kv_heads, page = kv.k_PKSD.shape[1], kv.page_size
    if not (kv.k_PKSD.is_contiguous() and kv.v_PKSD.is_contiguous()):
        raise ValueError("the pages must be contiguous")
    if dim & (dim - 1) or dim < ROWS or page & (page - 1) or page < ROWS:
        raise ValueError(f"head dim {dim} and page size {page} must be powers of two from {ROWS}")
    o_XBHD, lse_XBH = workspace.partials(plan.num_splits, batch, heads, dim)
    group = heads // kv_heads
    grid = (batch * kv_heads, plan.num_splits)
    _split_kernel[grid](
        q_BHD.contiguous(),
        kv.k_PKSD,
        kv.v_PKSD,
        kv.table_BM,
        kv.lengths_B,
        out_BHD,
        o_XBHD,
        lse_XBH,
        LOG2_E / math.sqrt(dim),
        batch,
        kv.table_BM.stride(0),
        plan.tokens_per_split,
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_ROWS=max(ROWS, triton.next_power_of_2(group)),
        D=dim,
        PAGE=page,
        TILE=min(64, page),
        SINGLE=plan.num_splits == 1,
        PRECISION="ieee" if q_BHD.dtype.itemsize == 4 else "tf32",
        num_warps=4,
        num_stages=3 if q_BHD.dtype.itemsize == 2 else 2,
    )
    if grid[1] > 1:
        _merge_kernel[(batch * heads,)](
            o_XBHD,
            lse_XBH,
            out_BHD,
            batch * heads,
            plan.num_splits,
            D=dim,
            SPLITS=triton.next_power_of_2(plan.num_splits),
            num_warps=4 if plan.num_splits > 16 else 1,
        )
    return grid[1]
