"""Device code that quantises a matrix to 8 bits, straight and transposed, from one read.

Two kernels. The first reads the matrix once and leaves its largest finite magnitude: the maximum of
non-negative floats is that of their bits as integers, and a maximum does not depend on the order of
the atomics, so the scale repeats exactly. Where asked it also leaves column sums in fp32 (a bias's
gradient), by blocks of rows. The second reads the matrix again and writes both forms.

Bytes for N x C in bf16: 2 + 2 read and 1 + 1 written an element. At N = 19,812, C = 8,192 that is
974 MB, which at 4.3 TB/s is 0.23 ms.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.fp8_linear import FP32_MAX, LEAST_SCALE, Quantised, limit_of, padded

ROWS = 256
"""Rows of one program of the first kernel: 19,812 x 1536 gives 78 x 6 programs."""

BLOCK_R, BLOCK_C = 8, 256
"""Its tile: 2048 elements of fp32 in registers over 4 warps, loads of 512 bytes a row in bf16."""

NARROW = 2
"""Bytes of the elements whose transpose the second kernel writes as well. Of fp32 elements, which
are weights, it came out wrong on an H200 (Triton 3.6 stores one value for several rows, whether
they are turned before or after the conversion), so that theirs is a copy of the bytes."""

TILE_R, TILE_C = 128, 64
"""Tile of the second: 128 bytes a row read in bf16, 64 written; 128 bytes a column written."""


@triton.jit  # type: ignore[untyped-decorator]
def _largest(  # type: ignore[no-untyped-def]
    x_ptr,
    bits_ptr,
    sums_ptr,
    row_stride,
    rows,
    columns,
    FINITE: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    block = tl.program_id(1)
    inside = column < columns
    largest = tl.full((BLOCK_R, BLOCK_C), 0.0, tl.float32)
    total = tl.full((BLOCK_R, BLOCK_C), 0.0, tl.float32)
    for step in range(0, ROWS, BLOCK_R):
        row = block * ROWS + step + tl.arange(0, BLOCK_R)
        at = row.to(tl.int64)[:, None] * row_stride + column[None, :]
        keep = (row < rows)[:, None] & inside[None, :]
        x = tl.load(x_ptr + at, mask=keep, other=0.0).to(tl.float32)
        size = tl.abs(x)
        largest = tl.maximum(largest, tl.where(size <= FINITE, size, 0.0))
        if SUMS:
            total += x
    top = tl.max(tl.max(largest, axis=1), axis=0)
    tl.atomic_max(bits_ptr, top.to(tl.int32, bitcast=True))
    if SUMS:
        at = block.to(tl.int64) * columns + column
        tl.store(sums_ptr + at, tl.sum(total, axis=0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _quantise(  # type: ignore[no-untyped-def]
    x_ptr,
    bits_ptr,
    out_ptr,
    turned_ptr,
    scale_ptr,
    row_stride,
    rows,
    columns,
    padded_rows,
    LIMIT: tl.constexpr,
    FINITE: tl.constexpr,
    LEAST: tl.constexpr,
    TURN: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_C: tl.constexpr,
):
    column = tl.program_id(0) * TILE_C + tl.arange(0, TILE_C)
    row = tl.program_id(1) * TILE_R + tl.arange(0, TILE_R)
    top = tl.load(bits_ptr).to(tl.float32, bitcast=True)
    scale = tl.maximum(top / LIMIT, LEAST)
    inside = column < columns
    keep = (row < rows)[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * row_stride + column[None, :]
    x = tl.load(x_ptr + at, mask=keep, other=0.0).to(tl.float32)
    scaled = x * (1.0 / scale)
    # Comparisons instead of min and max, which would turn NaN into a number.
    scaled = tl.where(scaled > LIMIT, LIMIT, scaled)
    scaled = tl.where(scaled < -LIMIT, -LIMIT, scaled)
    scaled = tl.where(tl.abs(x) <= FINITE, scaled, float("nan"))
    small = scaled.to(out_ptr.dtype.element_ty)
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out_ptr + at, small, mask=keep)
    if TURN:
        at = column.to(tl.int64)[:, None] * padded_rows + row[None, :]
        fits = inside[:, None] & (row < padded_rows)[None, :]
        tl.store(turned_ptr + at, tl.trans(small), mask=fits)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(scale_ptr, scale)


def quantise_triton(x_NC: Tensor, dtype: torch.dtype, *, turn: bool, sums: bool) -> Quantised:
    """Quantise ``[N, C]`` with one scale, as :func:`levers.kernels.fp8_linear.quantise_torch`.

    Args:
        x_NC: unit stride in C (else it is copied first), fp32 or narrower.
        dtype: the 8-bit format.
        turn: also write the transpose, padded to a multiple of 16 rows.
        sums: also sum the columns in fp32.
    """
    x_NC = x_NC if x_NC.stride(1) == 1 else x_NC.contiguous()
    rows, columns = x_NC.shape
    blocks, wide = triton.cdiv(rows, ROWS), padded(rows)
    bits = x_NC.new_zeros(1, dtype=torch.int32)
    scale = x_NC.new_empty((), dtype=torch.float32)
    partial = x_NC.new_empty((blocks if sums else 0, columns), dtype=torch.float32)
    out = x_NC.new_empty((rows, columns), dtype=dtype)
    within = turn and x_NC.element_size() == NARROW
    turned = x_NC.new_empty((columns, wide) if within else (0, 0), dtype=dtype)
    _largest[(triton.cdiv(columns, BLOCK_C), blocks)](
        x_NC,
        bits,
        partial,
        x_NC.stride(0),
        rows,
        columns,
        FINITE=FP32_MAX,
        SUMS=sums,
        ROWS=ROWS,
        BLOCK_R=BLOCK_R,
        BLOCK_C=BLOCK_C,
    )
    _quantise[(triton.cdiv(columns, TILE_C), triton.cdiv(wide, TILE_R))](
        x_NC,
        bits,
        out,
        turned,
        scale,
        x_NC.stride(0),
        rows,
        columns,
        wide,
        LIMIT=limit_of(dtype),
        FINITE=FP32_MAX,
        LEAST=LEAST_SCALE,
        TURN=within,
        TILE_R=TILE_R,
        TILE_C=TILE_C,
    )
    if turn and not within:
        turned = _turned_bytes(out, wide)
    return Quantised(out, turned if turn else None, scale, partial.sum(0) if sums else None)


def _turned_bytes(out_NC: Tensor, wide: int) -> Tensor:
    """The transpose of quantised values, zero beyond their rows, by a copy of their bytes."""
    rows, columns = out_NC.shape
    bits = torch.uint8 if out_NC.element_size() == 1 else out_NC.dtype
    turned_CN = out_NC.new_zeros((columns, wide), dtype=bits)
    turned_CN[:, :rows].copy_(out_NC.view(bits).t())
    return turned_CN.view(out_NC.dtype)
