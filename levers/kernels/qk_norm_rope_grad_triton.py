"""Device code of the fused RMS norm and RoPE of queries and keys: the backward, in one launch.

A program has one head and walks down the rows. It computes the norm again from the rows, turns the
gradient back, and leaves its rows' sums for the gammas' gradients, in fp32 and without atomics, so
that it repeats exactly; one small sum over the programs follows.

Queries, keys and values are views of one packed projection (or keys and values are, and queries lie
apart). Each gradient is written where the packed gradient has it, and that of the values is copied
there, so that nothing is left to be stacked.

Bytes, N rows of H x D bf16 channels: ``12 N H D`` for queries and keys and ``4 N H D`` for values,
which at N = 19,812, H x D = 1536 and 4.3 TB/s are 85 us and 28 us; a stack of the three gradients
apart would move ``12 N H D``, 85 us. The sums are 155 rows of 12 KB, half a percent.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.qk_norm_rope import rows_contiguous, unpacked
from levers.kernels.qk_norm_rope_tile_triton import (
    inverse_norm,
    load_pairs,
    load_scales,
    load_turns,
    store_pairs,
    times_inverse,
)
from levers.kernels.row_blocks_triton import block_count, block_width

ROWS, TILES, WARPS = 16, 8, 4
"""A program walks 8 tiles of 16 x 128 over 128 threads, of one head: a thread loads 32 bytes of an
operand and keeps its part of the gammas' sums in registers, so that nothing crosses warps before
the end. A head's phases come from the L2 cache (10 MB for all rows)."""


@triton.jit  # type: ignore[untyped-decorator]
def _store_sums(  # type: ignore[no-untyped-def]
    sums_ptr, even, odd, head, heads, dim, PAIRS: tl.constexpr
):
    """This program's sums over its rows."""
    pair = 2 * tl.arange(0, PAIRS)
    at = sums_ptr + (tl.program_id(1).to(tl.int64) * heads + head) * dim + pair
    tl.store(at, tl.sum(even, axis=0), mask=pair < dim)
    tl.store(at + 1, tl.sum(odd, axis=0), mask=pair < dim)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(  # type: ignore[no-untyped-def]
    x_ptr, row_stride, head_stride, grad_ptr, grad_row_stride, grad_head_stride,
    out_ptr, out_stride, scale_even, scale_odd, cos, sin, rows, count, head, dim,
    TURN: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a tile; what it adds to the gamma's sums, even and odd channels."""
    columns = tl.arange(0, 2 * PAIRS)
    keep = (rows < count)[:, None] & (columns < dim)[None, :]
    at = (rows * row_stride + head * head_stride)[:, None] + columns[None, :]
    even, odd = load_pairs(x_ptr, at, keep, ROWS, PAIRS)
    at = (rows * grad_row_stride + head * grad_head_stride)[:, None] + columns[None, :]
    grad_even, grad_odd = load_pairs(grad_ptr, at, keep, ROWS, PAIRS)
    if TURN:
        grad_even, grad_odd = grad_even * cos + grad_odd * sin, grad_odd * cos - grad_even * sin
    exact: tl.constexpr = out_ptr.dtype.element_ty == tl.float32
    inverse, rest, clamped = inverse_norm(even, odd, exact)
    even = times_inverse(even, inverse, rest, exact)
    odd = times_inverse(odd, inverse, rest, exact)
    sum_even, sum_odd = grad_even * even, grad_odd * odd
    grad_even, grad_odd = grad_even * scale_even[None, :], grad_odd * scale_odd[None, :]
    along = tl.sum(grad_even * even + grad_odd * odd, axis=1)
    along = tl.where(clamped, 0.0, along)
    grad_even = times_inverse(grad_even - even * along[:, None], inverse, rest, exact)
    grad_odd = times_inverse(grad_odd - odd * along[:, None], inverse, rest, exact)
    out_at = (rows * out_stride + head * dim)[:, None] + columns[None, :]
    store_pairs(out_ptr, out_at, keep, grad_even, grad_odd, ROWS, PAIRS)
    return sum_even, sum_odd


@triton.jit  # type: ignore[untyped-decorator]
def _copy(  # type: ignore[no-untyped-def]
    grad_ptr, row_stride, head_stride, out_ptr, out_stride, rows, count, head, dim,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """A tile of the values' gradient, as it is."""
    columns = tl.arange(0, 2 * PAIRS)
    keep = (rows < count)[:, None] & (columns < dim)[None, :]
    at = (rows * row_stride + head * head_stride)[:, None] + columns[None, :]
    tile = tl.load(grad_ptr + at, mask=keep, other=0.0)
    out_at = (rows * out_stride + head * dim)[:, None] + columns[None, :]
    tl.store(out_ptr + out_at, tile.to(out_ptr.dtype.element_ty), mask=keep)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    q_ptr, q_row_stride, q_head_stride, grad_q_ptr, grad_q_row_stride, grad_q_head_stride,
    dq_ptr, dq_stride, q_sums_ptr, gamma_q_ptr, q_rows,
    k_ptr, k_row_stride, k_head_stride, grad_k_ptr, grad_k_row_stride, grad_k_head_stride,
    dkv_ptr, dkv_stride, k_sums_ptr, gamma_k_ptr, k_rows,
    grad_v_ptr, grad_v_row_stride, grad_v_head_stride, turn_ptr, heads, dim, root,
    TURN: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    q_even, q_odd = load_scales(gamma_q_ptr, head, dim, root, PAIRS)
    k_even, k_odd = load_scales(gamma_k_ptr, head, dim, root, PAIRS)
    q_sum_even = tl.full((ROWS, PAIRS), 0.0, tl.float32)
    q_sum_odd = tl.full((ROWS, PAIRS), 0.0, tl.float32)
    k_sum_even = tl.full((ROWS, PAIRS), 0.0, tl.float32)
    k_sum_odd = tl.full((ROWS, PAIRS), 0.0, tl.float32)
    first = tl.program_id(1).to(tl.int64) * (TILES * ROWS)
    for tile in range(TILES):
        rows = first + tile * ROWS + tl.arange(0, ROWS)
        _copy(
            grad_v_ptr, grad_v_row_stride, grad_v_head_stride, dkv_ptr + heads * dim, dkv_stride,
            rows, k_rows, head, dim, PAIRS,
        )  # fmt: skip
        cos, sin = load_turns(turn_ptr, rows, q_rows, dim, TURN, ROWS, PAIRS)
        even, odd = _tile(
            q_ptr, q_row_stride, q_head_stride, grad_q_ptr, grad_q_row_stride, grad_q_head_stride,
            dq_ptr, dq_stride, q_even, q_odd, cos, sin, rows, q_rows, head, dim, TURN, ROWS, PAIRS,
        )  # fmt: skip
        q_sum_even += even
        q_sum_odd += odd
        even, odd = _tile(
            k_ptr, k_row_stride, k_head_stride, grad_k_ptr, grad_k_row_stride, grad_k_head_stride,
            dkv_ptr, dkv_stride, k_even, k_odd, cos, sin, rows, k_rows, head, dim, TURN, ROWS,
            PAIRS,
        )  # fmt: skip
        k_sum_even += even
        k_sum_odd += odd
    _store_sums(q_sums_ptr, q_sum_even, q_sum_odd, head, heads, dim, PAIRS)
    _store_sums(k_sums_ptr, k_sum_even, k_sum_odd, head, heads, dim, PAIRS)


def backward_triton(
    q_NHD: Tensor | None,
    packed: Tensor,
    gamma_q_HD: Tensor,
    gamma_k_HD: Tensor,
    turn_NP2: Tensor | None,
    grads: tuple[Tensor, ...],
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Gradients of the rows, contiguous and in their dtype, and of the gammas in fp32.

    Args:
        q_NHD: queries that came apart, or None.
        packed: ``[N, 3, H, D]`` with the queries or ``[M, 2, H, D]`` without.
        gamma_q_HD: scale of the normalised queries.
        gamma_k_HD: scale of the normalised keys.
        turn_NP2: cosine and sine of each pair, fp32, or None.
        grads: of queries, keys and values, in their dtype and with any strides.
    """
    q, k, _ = unpacked(q_NHD, packed)
    (q_rows, heads, dim), k_rows = q.shape, k.shape[0]
    grad_q, grad_k, grad_v = map(rows_contiguous, grads)
    dpacked = packed.new_empty(packed.shape)
    dq = dpacked[:, 0] if q_NHD is None else q_NHD.new_empty(q_NHD.shape)
    dkv = dpacked[:, -2:]
    blocks = block_count(max(q_rows, k_rows, 1), TILES * ROWS)
    sums = packed.new_empty((2, blocks, heads, dim), dtype=torch.float32)
    _backward[(heads, blocks)](
        q, *q.stride()[:2], grad_q, *grad_q.stride()[:2],
        dq, dq.stride(0), sums[0], gamma_q_HD.contiguous(), q_rows,
        k, *k.stride()[:2], grad_k, *grad_k.stride()[:2],
        dkv, dkv.stride(0), sums[1], gamma_k_HD.contiguous(), k_rows,
        grad_v, *grad_v.stride()[:2], q if turn_NP2 is None else turn_NP2.contiguous(),
        heads, dim, dim**0.5,
        TURN=turn_NP2 is not None, TILES=TILES, ROWS=ROWS,
        PAIRS=block_width(dim // 2, least=1), num_warps=WARPS,
    )  # fmt: skip
    dgamma_q, dgamma_k = sums.sum(1) * dim**0.5
    return None if q_NHD is None else dq, dpacked, dgamma_q, dgamma_k
