"""Triton kernels of split-KV decode attention, and their launcher.

One program is one (sequence, KV head, split). It holds the whole group of query heads as the rows
of one tile (padded to what a tensor-core product takes), so that every key and value is read once a
group. The running maximum and sum are those of online softmax (Milakov and Gimelshein 2018), in
base 2. Partials are merged by a second kernel, one program a (sequence, query head), or by the
program of a (sequence, KV head) that arrives last: it knows that from a counter, which it sets back
to zero for the next launch. Both sum the splits in their order, so results repeat.

The first page's number is fetched together with the length, since neither waits for the other, and
each later page's while the page before it is worked on.

At 2048 tokens, 8 KV heads of 128 and batch 1, 8.4 MB are read: 2.0 us at 4.3 TB/s; what is above
that is latency (launches, the chain of loads, the merge).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.split_kv import PagedKV, SplitPlan, Workspace
from levers.kernels.split_kv_config import DEFAULT, WIDE, SplitConfig
from levers.kernels.split_kv_merge_triton import merge_kernel, merge_last

ROWS = 16
"""Smallest number of rows of a tensor-core product in Triton."""
LOG2_E = 1.4426950408889634
SHAPES = ("batch", "table_stride", "pages", "splits")
"""Numbers of a launch that would compile the kernel anew where they are 1 or a multiple of 16."""
FEWEST_SPLITS = 32
"""Log-sum-exps are merged in a tile of at least as many, so that one kernel serves most plans."""
MERGED_AT_ONCE = 16
"""Splits whose partials the last program holds at a time: 16 x 4 heads x 128 fp32 are 64 registers
a thread of 128."""


@triton.jit(do_not_specialize=SHAPES)  # type: ignore[untyped-decorator]
def _split_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    lengths_ptr,
    out_ptr,
    o_ptr,
    lse_ptr,
    arrived_ptr,
    scale_log2,
    batch,
    table_stride,
    pages,
    splits,
    tokens_per_split,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SINGLE: tl.constexpr,
    LAST_MERGES: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(0) // KV_HEADS
    head = tl.program_id(0) % KV_HEADS
    split = tl.program_id(1)
    start = split * tokens_per_split
    table = table_ptr + row * table_stride
    length = tl.load(lengths_ptr + row)
    page = tl.load(table + start // PAGE, mask=start // PAGE < pages, other=0).to(tl.int64)

    g = tl.arange(0, GROUP_ROWS)
    d = tl.arange(0, D)
    t = tl.arange(0, TILE)
    heads: tl.constexpr = KV_HEADS * GROUP
    first_head = row * heads + head * GROUP
    q_at = (first_head + g)[:, None] * D + d[None, :]
    q = tl.load(q_ptr + q_at, mask=(g < GROUP)[:, None], other=0.0)
    end = tl.minimum(start + tokens_per_split, length)

    top = tl.full([GROUP_ROWS], float("-inf"), dtype=tl.float32)
    total = tl.full([GROUP_ROWS], 0.0, dtype=tl.float32)
    acc = tl.full([GROUP_ROWS, D], 0.0, dtype=tl.float32)
    for first in range(start, end, TILE):
        base = ((page * KV_HEADS + head) * PAGE + first % PAGE) * D
        following = (first + TILE) // PAGE
        page = tl.load(table + following, mask=following < pages, other=0).to(tl.int64)
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
        tl.store(lse_ptr + split * rows + first_head + g, lse, mask=g < GROUP)
        if LAST_MERGES:
            # All threads' stores come before the one atomic, and it before all threads' loads.
            tl.debug_barrier()
            counter = arrived_ptr + row * KV_HEADS + head
            before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
            tl.debug_barrier()
            if before == splits - 1:
                merge_last(
                    out_ptr,
                    o_ptr,
                    lse_ptr,
                    first_head,
                    rows,
                    splits,
                    GROUP,
                    HEADS,
                    D,
                    SPLITS,
                    CHUNK,
                )
                tl.store(counter, 0)


def launch(
    q_BHD: Tensor,
    kv: PagedKV,
    plan: SplitPlan,
    out_BHD: Tensor,
    workspace: Workspace,
    config: SplitConfig | None = None,
) -> int:
    """Launch the split kernel and, where there is more than one split, the merge.

    Returns:
        The number of splits in the grid that was launched.

    Raises:
        ValueError: a head dimension that is no power of two, pages that are not contiguous or hold
            no whole tiles of 16 slots.
    """
    used = _fitting(config or (WIDE if q_BHD.dtype.itemsize == 4 else DEFAULT), kv, plan)
    o_XBHD, lse_XBH = workspace.partials(plan.num_splits, *q_BHD.shape)
    last = used.merge == "last" and plan.num_splits > 1
    written = (out_BHD, o_XBHD, lse_XBH, workspace.arrived_BH)
    _launch_pieces(q_BHD, kv, plan, written, used, last)
    if plan.num_splits > 1 and not last:
        _launch_merge(o_XBHD, lse_XBH, out_BHD)
    return plan.num_splits


def _launch_pieces(
    q_BHD: Tensor,
    kv: PagedKV,
    plan: SplitPlan,
    written: tuple[Tensor, Tensor, Tensor, Tensor],
    config: SplitConfig,
    last: bool,
) -> None:
    """One program a (sequence, KV head, split); ``last``: the last one of a KV head merges."""
    (batch, heads, dim), kv_heads = q_BHD.shape, kv.k_PKSD.shape[1]
    group, splits = heads // kv_heads, plan.num_splits
    _split_kernel[(batch * kv_heads, splits)](
        q_BHD.contiguous(),
        kv.k_PKSD,
        kv.v_PKSD,
        kv.table_BM,
        kv.lengths_B,
        *written,
        LOG2_E / math.sqrt(dim),
        batch,
        kv.table_BM.stride(0),
        kv.table_BM.shape[1],
        splits,
        plan.tokens_per_split,
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_ROWS=max(config.rows, triton.next_power_of_2(group)),
        D=dim,
        PAGE=kv.page_size,
        TILE=config.tile,
        SINGLE=splits == 1,
        PRECISION="ieee" if q_BHD.dtype.itemsize == 4 else "tf32",
        **_merging(last, group, triton.next_power_of_2(splits)),
        num_warps=config.warps,
        num_stages=config.stages,
    )


def _launch_merge(o_XBHD: Tensor, lse_XBH: Tensor, out_BHD: Tensor) -> None:
    """One program a (sequence, query head)."""
    splits, rows = o_XBHD.shape[0], out_BHD.shape[0] * out_BHD.shape[1]
    merge_kernel[(rows,)](
        o_XBHD,
        lse_XBH,
        out_BHD,
        rows,
        splits,
        D=out_BHD.shape[2],
        SPLITS=triton.next_power_of_2(splits),
        num_warps=4 if splits > 16 else 1,
    )


def _merging(last: bool, group: int, padded: int) -> dict[str, Any]:
    """The constants of the merge inside the split kernel.

    They are fixed where it merges nothing, so that one compiled kernel serves every split count.
    """
    return {
        "LAST_MERGES": last,
        "HEADS": triton.next_power_of_2(group) if last else 1,
        "SPLITS": max(FEWEST_SPLITS, padded) if last else 1,
        "CHUNK": MERGED_AT_ONCE if last else 1,
    }


def _fitting(config: SplitConfig, kv: PagedKV, plan: SplitPlan) -> SplitConfig:
    """The layout with the largest tile that neither a page nor a piece cuts.

    Raises:
        ValueError: as :func:`launch`.
    """
    if not (kv.k_PKSD.is_contiguous() and kv.v_PKSD.is_contiguous()):
        raise ValueError("the pages must be contiguous")
    dim = kv.k_PKSD.shape[3]
    whole = math.gcd(kv.page_size, plan.tokens_per_split)
    if dim & (dim - 1) or dim < ROWS or whole % ROWS:
        raise ValueError(
            f"head dim {dim} must be a power of two from {ROWS}, and pages of {kv.page_size} and "
            f"pieces of {plan.tokens_per_split} tokens must hold whole tiles of {ROWS}"
        )
    return replace(config, tile=min(config.tile, whole & -whole))
