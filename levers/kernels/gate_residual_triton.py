"""Device code of ``x + h * gate``: one pass forward, one backward with the gate's gradient summed.

A program has ``ROWS`` rows of one sample and ``BLOCK_C`` channels. The backward walks its rows in
tiles and keeps the sum of ``dy h`` in registers; a second kernel sums the programs' partials. No
gradient by row of the gate is written, and there are no atomics, so it repeats exactly.

Bytes at N rows of C bf16 channels: the forward moves 6 NC, the backward 6 NC and ``8 C N / ROWS``
for the partials. At 19,812 x 1,536 and 4.3 TB/s that is 42 us each, and 1.8 us.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.row_blocks_triton import (
    block_count,
    block_width,
    row_block,
    slot_count,
    sum_partials,
    with_unit_stride,
)

FORWARD_ROWS = 8
BACKWARD_ROWS = 32
TILE_ROWS = 4
BLOCK_C = 512
"""1536 channels are three blocks without padding, in 16-byte loads. The forward's tile is all of
its 8 rows; the backward's accumulator is 4 x 512, 16 fp32 values a thread over 4 warps."""

WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x_ptr,
    h_ptr,
    gate_ptr,
    out_ptr,
    cu_ptr,
    rows,
    samples,
    channels,
    blocks,
    x_stride,
    h_stride,
    gate_stride,
    ROWS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    columns = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    slot = tl.program_id(0) // blocks
    sample, first, last = row_block(slot, cu_ptr, rows, samples, ROWS, BLOCK_B, True)
    inside = columns < channels
    gate = tl.load(gate_ptr + sample * gate_stride + columns, mask=inside, other=0.0)
    row = (first + tl.arange(0, ROWS))[:, None]
    keep = (row < last) & inside[None, :]
    row = row.to(tl.int64)
    x = tl.load(x_ptr + row * x_stride + columns[None, :], mask=keep, other=0.0)
    h = tl.load(h_ptr + row * h_stride + columns[None, :], mask=keep, other=0.0)
    out = x.to(tl.float32) + h.to(tl.float32) * gate.to(tl.float32)[None, :]
    at = out_ptr + row * channels + columns[None, :]
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=keep)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad_ptr,
    h_ptr,
    gate_ptr,
    dh_ptr,
    partial_ptr,
    cu_ptr,
    rows,
    samples,
    channels,
    blocks,
    grad_stride,
    h_stride,
    gate_stride,
    ROWS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
    SUMS: tl.constexpr,
):
    columns = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    slot = tl.program_id(0) // blocks
    sample, first, last = row_block(slot, cu_ptr, rows, samples, ROWS, BLOCK_B, True)
    inside = columns < channels
    gate = tl.load(gate_ptr + sample * gate_stride + columns, mask=inside, other=0.0)
    total = tl.full((TILE_ROWS, BLOCK_C), 0.0, tl.float32)
    for step in tl.static_range(0, ROWS, TILE_ROWS):
        row = (first + step + tl.arange(0, TILE_ROWS))[:, None]
        keep = (row < last) & inside[None, :]
        row = row.to(tl.int64)
        at = row * grad_stride + columns[None, :]
        grad = tl.load(grad_ptr + at, mask=keep, other=0.0).to(tl.float32)
        if SUMS:
            at = row * h_stride + columns[None, :]
            total += grad * tl.load(h_ptr + at, mask=keep, other=0.0).to(tl.float32)
        dh = grad * gate.to(tl.float32)[None, :]
        at = row * channels + columns[None, :]
        tl.store(dh_ptr + at, dh.to(dh_ptr.dtype.element_ty), mask=keep)
    if SUMS:
        at = slot.to(tl.int64) * channels + columns
        tl.store(partial_ptr + at, tl.sum(total, axis=0), mask=inside)


def forward_triton(x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, cu_seqlens: Tensor) -> Tensor:
    """One launch: ``[N, C]`` in the dtype of ``x_NC``; ``cu_seqlens`` is int32 [B + 1]."""
    x_NC, h_NC = with_unit_stride(x_NC), with_unit_stride(h_NC)
    gate_BC = with_unit_stride(gate_BC)
    rows, channels = x_NC.shape
    samples, blocks = gate_BC.shape[0], block_count(channels, BLOCK_C)
    out_NC = x_NC.new_empty((rows, channels))
    _forward[(blocks * slot_count(rows, samples, FORWARD_ROWS),)](
        x_NC,
        h_NC,
        gate_BC,
        out_NC,
        cu_seqlens,
        rows,
        samples,
        channels,
        blocks,
        x_NC.stride(0),
        h_NC.stride(0),
        gate_BC.stride(0),
        ROWS=FORWARD_ROWS,
        BLOCK_B=block_width(samples),
        BLOCK_C=BLOCK_C,
        num_warps=WARPS,
    )
    return out_NC


def backward_triton(
    grad_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, cu_seqlens: Tensor, *, sums: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``h`` and gate in two launches, or of ``h`` alone in one without ``sums``."""
    grad_NC, h_NC = with_unit_stride(grad_NC), with_unit_stride(h_NC)
    gate_BC = with_unit_stride(gate_BC)
    rows, channels = h_NC.shape
    samples, blocks = gate_BC.shape[0], block_count(channels, BLOCK_C)
    slots = slot_count(rows, samples, BACKWARD_ROWS)
    dh_NC = h_NC.new_empty((rows, channels))
    partial_KPC = h_NC.new_empty((1, slots if sums else 0, channels), dtype=torch.float32)
    _backward[(blocks * slots,)](
        grad_NC,
        h_NC,
        gate_BC,
        dh_NC,
        partial_KPC,
        cu_seqlens,
        rows,
        samples,
        channels,
        blocks,
        grad_NC.stride(0),
        h_NC.stride(0),
        gate_BC.stride(0),
        ROWS=BACKWARD_ROWS,
        TILE_ROWS=TILE_ROWS,
        BLOCK_B=block_width(samples),
        BLOCK_C=BLOCK_C,
        SUMS=sums,
        num_warps=WARPS,
    )
    if not sums:
        return dh_NC, None
    summed = sum_partials(partial_KPC, cu_seqlens, rows, samples, BACKWARD_ROWS, gate_BC.dtype)
    return dh_NC, summed[0]
