"""Device code of the Linear's parameters: the sum of a gradient's columns, and one cast of two.

The column sums: a program walks ``ROWS`` rows of ``BLOCK_C`` columns in tiles, with the sums in
fp32 registers, and leaves one row of partial sums; the shared kernel of the row levers adds those
up. No atomics, so it repeats exactly. Bytes at N rows of F bf16 columns: 2 N F, and 8 F N / ROWS
for the partials, 6 % more. At 19,812 x 1,536 and 4.3 TB/s that is 15 us; at 4,608 columns 45 us.

The cast rounds a weight and its bias, or two of each, to the nearest value, ties to even, in one
launch: 6 bytes an element.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.row_blocks_triton import block_count, sum_partials, with_unit_stride

ROWS = 64
TILE_ROWS = 8
BLOCK_C = 512
"""1536 columns are three blocks without padding. A tile of 8 x 512 over 128 threads is four 16-byte
loads and 32 fp32 sums a thread; 19,812 rows of 1536 are 930 programs, seven for each of 132 SMs."""

SUM_WARPS = 4

CAST_BLOCK = 2048
CAST_WARPS = 8
"""2048 elements over 256 threads: two 16-byte loads and one 16-byte store a thread."""


@triton.jit  # type: ignore[untyped-decorator]
def _column_sums(  # type: ignore[no-untyped-def]
    rows_ptr,
    partial_ptr,
    rows,
    channels,
    blocks,
    stride,
    ROWS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    columns = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    slot = tl.program_id(0) // blocks
    inside = columns < channels
    total = tl.full((TILE_ROWS, BLOCK_C), 0.0, tl.float32)
    for step in tl.static_range(0, ROWS, TILE_ROWS):
        row = (slot * ROWS + step + tl.arange(0, TILE_ROWS))[:, None]
        keep = (row < rows) & inside[None, :]
        at = row.to(tl.int64) * stride + columns[None, :]
        total += tl.load(rows_ptr + at, mask=keep, other=0.0).to(tl.float32)
    at = slot.to(tl.int64) * channels + columns
    tl.store(partial_ptr + at, tl.sum(total, axis=0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _cast(from_ptr, to_ptr, block, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = at < count
    value = tl.load(from_ptr + at, mask=keep, other=0.0)
    tl.store(to_ptr + at, value.to(to_ptr.dtype.element_ty), mask=keep)


@triton.jit  # type: ignore[untyped-decorator]
def _cast_both(  # type: ignore[no-untyped-def]
    weight_ptr,
    bias_ptr,
    weight_out_ptr,
    bias_out_ptr,
    weights,
    biases,
    weight_blocks,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    if block < weight_blocks:
        _cast(weight_ptr, weight_out_ptr, block, weights, BLOCK)
    else:
        _cast(bias_ptr, bias_out_ptr, block - weight_blocks, biases, BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _cast_four(  # type: ignore[no-untyped-def]
    weight_ptr, other_ptr, bias_ptr, other_bias_ptr,
    weight_out_ptr, other_out_ptr, bias_out_ptr, other_bias_out_ptr,
    weights, others, biases, other_biases, weights_end, others_end, biases_end,
    BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    if block < weights_end:
        _cast(weight_ptr, weight_out_ptr, block, weights, BLOCK)
    elif block < others_end:
        _cast(other_ptr, other_out_ptr, block - weights_end, others, BLOCK)
    elif block < biases_end:
        _cast(bias_ptr, bias_out_ptr, block - others_end, biases, BLOCK)
    else:
        _cast(other_bias_ptr, other_bias_out_ptr, block - biases_end, other_biases, BLOCK)


def column_sums_triton(rows_NF: Tensor, dtype: torch.dtype) -> Tensor:
    """Two launches: the sum of the rows in fp32, rounded once to ``dtype``: ``[F]``.

    Raises:
        TypeError: rows of a dtype that sums in fp32 would narrow.
    """
    rows_NF = with_unit_stride(rows_NF)
    rows, channels = rows_NF.shape
    blocks, slots = block_count(channels, BLOCK_C), max(1, block_count(rows, ROWS))
    partial_KPC = rows_NF.new_empty((1, slots, channels), dtype=torch.float32)
    _column_sums[(blocks * slots,)](
        rows_NF,
        partial_KPC,
        rows,
        channels,
        blocks,
        rows_NF.stride(0),
        ROWS=ROWS,
        TILE_ROWS=TILE_ROWS,
        BLOCK_C=BLOCK_C,
        num_warps=SUM_WARPS,
    )
    return sum_partials(partial_KPC, None, rows, 1, ROWS, dtype).view(-1)


def rounded_triton(weight_FC: Tensor, bias_F: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One launch: weight and bias in ``dtype``, both contiguous."""
    weight_FC, bias_F = weight_FC.contiguous(), bias_F.contiguous()
    weight = torch.empty_like(weight_FC, dtype=dtype)
    bias = torch.empty_like(bias_F, dtype=dtype)
    weights, biases = weight.numel(), bias.numel()
    weight_blocks = block_count(weights, CAST_BLOCK)
    _cast_both[(weight_blocks + block_count(biases, CAST_BLOCK),)](
        weight_FC,
        bias_F,
        weight,
        bias,
        weights,
        biases,
        weight_blocks,
        BLOCK=CAST_BLOCK,
        num_warps=CAST_WARPS,
    )
    return weight, bias


def rounded_four_triton(
    weight: Tensor, bias: Tensor, other: Tensor, other_bias: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One launch: two weights with their biases in ``dtype``, contiguous, in the order given."""
    weight, bias = weight.contiguous(), bias.contiguous()
    other, other_bias = other.contiguous(), other_bias.contiguous()
    weight_out = torch.empty_like(weight, dtype=dtype)
    bias_out = torch.empty_like(bias, dtype=dtype)
    other_out = torch.empty_like(other, dtype=dtype)
    other_bias_out = torch.empty_like(other_bias, dtype=dtype)
    weights, others = weight.numel(), other.numel()
    biases, other_biases = bias.numel(), other_bias.numel()
    weights_end = block_count(weights, CAST_BLOCK)
    others_end = weights_end + block_count(others, CAST_BLOCK)
    biases_end = others_end + block_count(biases, CAST_BLOCK)
    _cast_four[(biases_end + block_count(other_biases, CAST_BLOCK),)](
        weight, other, bias, other_bias, weight_out, other_out, bias_out, other_bias_out,
        weights, others, biases, other_biases, weights_end, others_end, biases_end,
        BLOCK=CAST_BLOCK, num_warps=CAST_WARPS,
    )  # fmt: skip
    return weight_out, bias_out, other_out, other_bias_out
