"""Device code of head norm, rotary positions and the split of a decoder's packed projection.

A program has ``TILE`` heads of one token, queries and keys alike: it reads them twice (the second
time from the first-level cache), norms, turns and stores them where queries or keys belong. Values
need no arithmetic: they are a view of the projection, or, where the cache's rows are given, they
are copied there with the keys by programs of their own.

Roundings are those of the separate operations: the norm's result, both products of the rotation,
and their sum are each rounded to the stream's dtype. The norm sums as PyTorch's kernel does at one
row of D channels, D / 4 threads with 4 channels each and a tree over them (see
:mod:`.add_norm_triton`), so that the bits agree up to D = 128, one warp's width.

Bytes at N tokens of P heads of D bf16 channels: 4 NPD. At one token nothing: the time is one launch
in place of about twelve. At 2,048 tokens of 40 heads of 128 and 4.3 TB/s it is 10 us.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.add_norm_triton import QUAD, halving_sum

STEP_HEADS = 1
PROMPT_HEADS = 8
"""Heads of a program at a step, where every SM should have work, and at a prompt."""
STEP_TOKENS = 32


@triton.jit  # type: ignore[untyped-decorator]
def _norm_scale(  # type: ignore[no-untyped-def]
    at,
    keep,
    eps,
    D: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """``1 / sqrt(mean square + eps)`` of each head, summed as PyTorch sums."""
    lane = tl.arange(0, LANES)
    squares = tl.zeros((TILE, LANES), tl.float32)
    for part in tl.static_range(4):
        d = lane * 4 + part
        x = tl.load(at[:, None] + d[None, :], mask=keep[:, None] & (d < D)[None, :], other=0.0)
        squares += x.to(tl.float32) * x.to(tl.float32)
    total = halving_sum(squares, TILE, LANES, LEVELS)
    return tl.rsqrt(tl.div_rn(total, tl.zeros((TILE,), tl.float32) + D) + eps)


@triton.jit  # type: ignore[untyped-decorator]
def _half(at, norm_at, scale, d, keep, NORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """One half of each head, normed and rounded."""
    mask = keep[:, None] & (d >= 0)[None, :]
    x = tl.load(at[:, None] + d[None, :], mask=mask, other=0.0)
    if NORM:
        weight = tl.load(norm_at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        x = (weight * (scale[:, None] * x.to(tl.float32))).to(x.dtype)
    return x.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _turned(first, second, cos, sin, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """``first cos + second sin``, each product and the sum rounded."""
    one = (first * cos).to(dtype).to(tl.float32)
    other = (second * sin).to(dtype).to(tl.float32)
    return (one + other).to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _qk_norm_rope(  # type: ignore[no-untyped-def]
    packed_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    rows_ptr,
    eps,
    token_stride,
    rope_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
    LEVELS: tl.constexpr,
    NORM: tl.constexpr,
    STORED: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    at = packed_ptr + token * token_stride + head * D
    is_query, is_key = head < H, (head >= H) & (head < H + K)
    keep = is_query | is_key
    d = tl.arange(0, HALF)
    inside = d < D // 2
    d = tl.where(inside, d, -D)
    dtype: tl.constexpr = q_ptr.dtype.element_ty

    norm_at = tl.where(is_query, q_norm_ptr + head * 0, k_norm_ptr + head * 0)
    scale = tl.zeros((TILE,), tl.float32)
    if NORM:
        scale = _norm_scale(at, keep, eps, D, TILE, LANES, LEVELS)
    first = _half(at, norm_at, scale, d, keep, NORM)
    second = _half(at, norm_at, scale, d + D // 2, keep, NORM)
    rope_at = token * rope_stride + d
    cos_1 = tl.load(cos_ptr + rope_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_1 = tl.load(sin_ptr + rope_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    cos_2 = tl.load(cos_ptr + rope_at + D // 2, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_2 = tl.load(sin_ptr + rope_at + D // 2, mask=inside, other=0.0).to(tl.float32)[None, :]
    low = _turned(first, -second, cos_1, sin_1, dtype)
    high = _turned(second, first, cos_2, sin_2, dtype)

    key = head - H
    if STORED:
        slot = tl.load(rows_ptr + token * K + key, mask=is_key, other=0).to(tl.int64)
    else:
        slot = token * K + key
    to_query = q_ptr + (token * H + head) * D
    to_key = k_ptr + slot * D
    queries, keys = is_query[:, None] & inside[None, :], is_key[:, None] & inside[None, :]
    tl.store(to_query[:, None] + d[None, :], low, mask=queries)
    tl.store(to_query[:, None] + d[None, :] + D // 2, high, mask=queries)
    tl.store(to_key[:, None] + d[None, :], low, mask=keys)
    tl.store(to_key[:, None] + d[None, :] + D // 2, high, mask=keys)
    if STORED:
        value = head - H - K
        is_value = (value >= 0) & (value < K)
        slot = tl.load(rows_ptr + token * K + value, mask=is_value, other=0).to(tl.int64)
        values = is_value[:, None] & inside[None, :]
        for part in tl.static_range(2):
            x = tl.load(at[:, None] + d[None, :] + part * (D // 2), mask=values, other=0.0)
            to_value = v_ptr + slot[:, None] * D + d[None, :] + part * (D // 2)
            tl.store(to_value, x, mask=values)


def qk_norm_rope_triton(
    packed_NPD: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    rope: tuple[Tensor, Tensor],
    heads: tuple[int, int],
    eps: float,
    stored: tuple[Tensor, Tensor, Tensor] | None = None,
    *,
    early: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """One launch: ``q_NHD k_NKD v_NKD``; the values are a view of the projection.

    ``stored`` are a cache's keys and values as rows ``[R, D]`` and the row of each token and KV
    head ``[N * K]``: keys and values are then written there, and both results are views of the
    unturned projection that nothing may read. ``early`` is programmatic dependent launch: the
    program is there when the projection's launch ends.
    """
    count, _, dim = packed_NPD.shape
    h, k = heads
    if packed_NPD.stride()[1:] != (dim, 1):
        packed_NPD = packed_NPD.contiguous()
    v_NKD = packed_NPD[:, h + k :]
    q_NHD = packed_NPD.new_empty((count, h, dim))
    k_NKD = packed_NPD[:, h : h + k] if stored else packed_NPD.new_empty((count, k, dim))
    cos_N1D, sin_N1D = (one.contiguous() for one in rope)
    constants = _constants(count, heads, dim, normed=norms is not None, stored=stored is not None)
    if count:
        _qk_norm_rope[(count, triton.cdiv(h + (2 if stored else 1) * k, constants["TILE"]))](
            packed_NPD,
            *(norms or (packed_NPD, packed_NPD)),
            cos_N1D,
            sin_N1D,
            q_NHD,
            *(stored or (k_NKD, v_NKD, packed_NPD)),
            eps,
            packed_NPD.stride(0),
            cos_N1D.stride(0),
            PDL=early,
            **constants,
            **({"launch_pdl": True} if early else {}),
        )
    return q_NHD, k_NKD, v_NKD


def _constants(
    count: int, heads: tuple[int, int], dim: int, *, normed: bool, stored: bool
) -> dict[str, Any]:
    """What the kernel is compiled for."""
    tile = STEP_HEADS if count <= STEP_TOKENS else PROMPT_HEADS
    lanes = max(2, triton.next_power_of_2(triton.cdiv(dim, QUAD)))
    return {
        "H": heads[0],
        "K": heads[1],
        "D": dim,
        "HALF": max(2, triton.next_power_of_2(dim // 2)),
        "TILE": tile,
        "LANES": lanes,
        "LEVELS": lanes.bit_length() - 1,
        "NORM": normed,
        "STORED": stored,
        "num_warps": 1 if tile == 1 else 4,
    }
