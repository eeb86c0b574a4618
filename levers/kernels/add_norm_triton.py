"""Device code of residual add and RMS norm in one launch, in the order of PyTorch's own norm.

PyTorch's CUDA norm of a row whose width is a multiple of 4 runs in 128 threads. Thread t squares
and sums, one after the other, the 4 channels of each quad t, t + 128, ...; the threads' sums meet
in a tree, lanes 16 apart first, then 8, 4, 2, 1, and the four warps in the same way. Here each of
these sums is written out in that order (a sum of two terms has one result whatever the layout), the
mean is divided with rounding to nearest, and the product is rounded where PyTorch rounds it: so the
bits agree. Widths that are no multiple of 4 are normed correctly, in an order of our own.

A program is one row. It reads both rows twice, the second time from the first-level cache.

Bytes at N rows of C bf16 channels: 4 NC read and 4 NC written, with launches apart 10 NC. At one
row that is nothing: the time is the launch's (one in place of two). At 2,048 x 2,560 and 4.3 TB/s
it is 10 us.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

LANES = 32
WARPS = 4
THREADS = LANES * WARPS
QUAD = 4
"""PyTorch's norm reads 4 channels a thread at a time, in 4 warps of 32."""


@triton.jit  # type: ignore[untyped-decorator]
def halving_sum(v_RL, ROWS: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum ``LANES = 2 ** LEVELS`` values of each row: those half a row apart first."""
    for level in tl.static_range(LEVELS):
        v_RL = tl.sum(tl.reshape(v_RL, (ROWS, 2, LANES >> (level + 1))), axis=1)
    return tl.reshape(v_RL, (ROWS,))


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(  # type: ignore[no-untyped-def]
    x_ptr,
    delta_ptr,
    weight_ptr,
    sum_ptr,
    out_ptr,
    channels,
    eps,
    x_stride,
    delta_stride,
    STEPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    LANES: tl.constexpr,
    WARPS: tl.constexpr,
    QUAD: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    delta_ptr += row * delta_stride
    thread = tl.arange(0, LANES * WARPS)
    squares = tl.zeros((LANES * WARPS,), tl.float32)
    for step in tl.static_range(STEPS):
        for part in tl.static_range(QUAD):
            c = (step * LANES * WARPS + thread) * QUAD + part
            x = tl.load(x_ptr + c, mask=c < channels, other=0.0)
            delta = tl.load(delta_ptr + c, mask=c < channels, other=0.0)
            s = (x.to(tl.float32) + delta.to(tl.float32)).to(sum_ptr.dtype.element_ty)
            squares += s.to(tl.float32) * s.to(tl.float32)
    warps = halving_sum(tl.reshape(squares, (WARPS, LANES)), WARPS, LANES, 5)
    total = halving_sum(tl.reshape(warps, (1, WARPS)), 1, WARPS, 2)
    mean = tl.div_rn(total, tl.zeros((1,), tl.float32) + channels)
    scale = tl.rsqrt(mean + eps)

    c = tl.arange(0, BLOCK_C)
    keep = c < channels
    x = tl.load(x_ptr + c, mask=keep, other=0.0)
    delta = tl.load(delta_ptr + c, mask=keep, other=0.0)
    s = (x.to(tl.float32) + delta.to(tl.float32)).to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + row * channels + c, s, mask=keep)
    weight = tl.load(weight_ptr + c, mask=keep, other=0.0).to(tl.float32)
    normed = weight * (scale * s.to(tl.float32))
    tl.store(out_ptr + row * channels + c, normed.to(out_ptr.dtype.element_ty), mask=keep)


def add_norm_triton(
    x_NC: Tensor, delta_NC: Tensor, weight_C: Tensor, eps: float, *, early: bool = False
) -> tuple[Tensor, Tensor]:
    """One launch: the sum and its norm, ``[N, C]`` each in the dtype of ``x_NC``.

    ``early`` is programmatic dependent launch: the program is there when the launch before it ends.
    """
    rows, channels = x_NC.shape
    x_NC, delta_NC = _rows_in_one_piece(x_NC), _rows_in_one_piece(delta_NC)
    sum_NC, out_NC = x_NC.new_empty((2, rows, channels)).unbind()
    if rows:
        _add_norm[(rows,)](
            x_NC,
            delta_NC,
            weight_C.contiguous(),
            sum_NC,
            out_NC,
            channels,
            eps,
            x_NC.stride(0),
            delta_NC.stride(0),
            STEPS=triton.cdiv(channels, THREADS * QUAD),
            BLOCK_C=triton.next_power_of_2(channels),
            LANES=LANES,
            WARPS=WARPS,
            QUAD=QUAD,
            PDL=early,
            num_warps=WARPS,
            **({"launch_pdl": True} if early else {}),
        )
    return sum_NC, out_NC


def _rows_in_one_piece(x_NC: Tensor) -> Tensor:
    return x_NC if x_NC.stride(-1) == 1 else x_NC.contiguous()
