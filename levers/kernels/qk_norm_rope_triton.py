"""Device code of the fused RMS norm and RoPE of queries and keys: the forward, in one launch.

A program takes a tile of rows and a group of heads, for queries *and* keys, so that a row's cosines
and sines are read once for all of them; the groups of a tile run next to each other and find them
in the L2 cache.

Bytes, N rows of H x D bf16 channels: ``8 N H D``, which at N = 19,812, H x D = 1536 and 4.3 TB/s is
57 us, and 10 MB of phases.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.qk_norm_rope_tile_triton import (
    inverse_norm,
    load_pairs,
    load_scales,
    load_turns,
    store_pairs,
    times_inverse,
)
from levers.kernels.row_blocks_triton import block_count, block_width

HEADS = 4
"""Heads of a program: 12 heads make 3 groups."""

ROWS, WARPS = 16, 8
"""A tile of 16 x 128 over 256 threads: one 16-byte load a thread, 40 registers on sm_90."""


@triton.jit  # type: ignore[untyped-decorator]
def _head(  # type: ignore[no-untyped-def]
    x_ptr, row_stride, head_stride, out_ptr, gamma_ptr, cos, sin, rows, count, head, heads, dim,
    root, TURN: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, 2 * PAIRS)
    keep = (rows < count)[:, None] & (columns < dim)[None, :]
    at = (rows * row_stride + head * head_stride)[:, None] + columns[None, :]
    even, odd = load_pairs(x_ptr, at, keep, ROWS, PAIRS)
    exact: tl.constexpr = out_ptr.dtype.element_ty == tl.float32
    inverse, rest, _ = inverse_norm(even, odd, exact)
    scale_even, scale_odd = load_scales(gamma_ptr, head, dim, root, PAIRS)
    even = times_inverse(even, inverse, rest, exact) * scale_even[None, :]
    odd = times_inverse(odd, inverse, rest, exact) * scale_odd[None, :]
    if TURN:
        even = even.to(out_ptr.dtype.element_ty).to(tl.float32)
        odd = odd.to(out_ptr.dtype.element_ty).to(tl.float32)
        even, odd = even * cos - odd * sin, even * sin + odd * cos
    out_at = ((rows * heads + head) * dim)[:, None] + columns[None, :]
    store_pairs(out_ptr, out_at, keep, even, odd, ROWS, PAIRS)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    q_ptr, q_row_stride, q_head_stride, q_out_ptr, gamma_q_ptr, q_rows,
    k_ptr, k_row_stride, k_head_stride, k_out_ptr, gamma_k_ptr, k_rows,
    turn_ptr, heads, dim, root,
    TURN: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cos, sin = load_turns(turn_ptr, rows, q_rows, dim, TURN, ROWS, PAIRS)
    first = tl.program_id(0) * HEADS
    for head in range(first, tl.minimum(first + HEADS, heads)):
        _head(
            q_ptr, q_row_stride, q_head_stride, q_out_ptr, gamma_q_ptr, cos, sin, rows, q_rows,
            head, heads, dim, root, TURN, ROWS, PAIRS,
        )  # fmt: skip
        _head(
            k_ptr, k_row_stride, k_head_stride, k_out_ptr, gamma_k_ptr, cos, sin, rows, k_rows,
            head, heads, dim, root, TURN, ROWS, PAIRS,
        )  # fmt: skip


def forward_triton(
    q_NHD: Tensor,
    k_MHD: Tensor,
    gamma_q_HD: Tensor,
    gamma_k_HD: Tensor,
    turn_NP2: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Normalised and turned queries and keys, contiguous.

    Args:
        q_NHD: queries of fp32 or narrower, unit stride in D, any other strides.
        k_MHD: keys of the same dtype; M = N where there are phases.
        gamma_q_HD: scale of the normalised queries.
        gamma_k_HD: scale of the normalised keys.
        turn_NP2: cosine and sine of each pair, fp32, or None.
    """
    (q_rows, heads, dim), k_rows = q_NHD.shape, k_MHD.shape[0]
    rows = max(q_rows, k_rows, 1)
    q_out, k_out = q_NHD.new_empty(q_NHD.shape), k_MHD.new_empty(k_MHD.shape)
    _forward[(block_count(heads, HEADS), block_count(rows, ROWS))](
        q_NHD, *q_NHD.stride()[:2], q_out, gamma_q_HD.contiguous(), q_rows,
        k_MHD, *k_MHD.stride()[:2], k_out, gamma_k_HD.contiguous(), k_rows,
        q_NHD if turn_NP2 is None else turn_NP2.contiguous(), heads, dim, dim**0.5,
        TURN=turn_NP2 is not None, HEADS=HEADS, ROWS=ROWS,
        PAIRS=block_width(dim // 2, least=1), num_warps=WARPS,
    )  # fmt: skip
    return q_out, k_out
