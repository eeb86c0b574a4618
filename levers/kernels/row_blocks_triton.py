"""Device code that the row kernels share: which rows a program has, and the sum of partials.

Packed rows are cut into blocks of ``ROWS`` rows that never cross a sample. Block ``i`` of sample
``b`` has the slot ``cu[b] // ROWS + b + i``. A sample of n rows has at most
``cu[b + 1] // ROWS - cu[b] // ROWS + 1`` blocks, so no two blocks share a slot, there are
``N // ROWS + B`` slots whatever the lengths, and a program finds its rows from ``cu_seqlens`` on
the device alone: no table, no copy, nothing of the lengths on the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 128
BLOCK_C = 32
"""A tile of 128 partials x 32 channels, 16 fp64 values a thread over 8 warps: the 256 partials of
8192 rows are two tiles, and 1536 channels of 8 samples give 384 programs for each sum."""

SUM_WARPS = 8
SUPPORTED = (torch.bfloat16, torch.float16, torch.float32)


def slot_count(rows: int, samples: int, rows_of_block: int) -> int:
    """How many slots N rows of B samples have; at most B of them are empty."""
    return rows // rows_of_block + samples


def block_count(size: int, block: int) -> int:
    """How many blocks hold so many; Triton's own function for it takes microseconds on the host."""
    return (size + block - 1) // block


def block_width(size: int, least: int = 16) -> int:
    """The power of two from ``least`` that holds so many; a compiled graph keeps comparisons."""
    width = least
    while width < size:
        width *= 2
    return width


def with_unit_stride(rows_NC: Tensor) -> Tensor:
    """The rows themselves, or a copy where their channels are not adjacent.

    Raises:
        TypeError: a dtype that the kernels, which compute in fp32, would narrow.
    """
    if rows_NC.dtype not in SUPPORTED:
        raise TypeError(f"rows of {rows_NC.dtype}; the row kernels take {SUPPORTED}")
    return rows_NC if rows_NC.stride(1) == 1 else rows_NC.contiguous()


@triton.jit  # type: ignore[untyped-decorator]
def row_block(  # type: ignore[no-untyped-def]
    slot,
    cu_ptr,
    rows,
    samples,
    ROWS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    SEGMENTED: tl.constexpr,
):
    """The sample of a slot, its first row and the row after its last (none where it is empty)."""
    if SEGMENTED:
        b = tl.arange(0, BLOCK_B)
        starts = tl.load(cu_ptr + b, mask=b < samples, other=0) // ROWS + b
        sample = tl.sum(((starts <= slot) & (b < samples)).to(tl.int32), axis=0) - 1
        start = tl.load(cu_ptr + sample)
        stop = tl.load(cu_ptr + sample + 1)
        first = start + (slot - (start // ROWS + sample)) * ROWS
    else:
        sample = slot * 0
        first = slot * ROWS
        stop = rows
    last = tl.minimum(first + ROWS, stop)
    return sample, first, last


@triton.jit  # type: ignore[untyped-decorator]
def _sum_partials(  # type: ignore[no-untyped-def]
    partial_ptr,
    out_ptr,
    cu_ptr,
    rows,
    samples,
    channels,
    slots,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    SEGMENTED: tl.constexpr,
):
    """The partials of a block's rows reach far above a sum in which later rows cancel earlier ones.

    In fp64 their order does not matter and the sum is rounded once; the device reads the partials
    from memory longer than it adds them.
    """
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    sample = tl.program_id(1)
    which = tl.program_id(2)
    inside = columns < channels
    if SEGMENTED:
        start = tl.load(cu_ptr + sample)
        first = which * slots + start // ROWS + sample
        count = (tl.load(cu_ptr + sample + 1) - start + ROWS - 1) // ROWS
    else:
        first = which * slots
        count = (rows + ROWS - 1) // ROWS
    total = tl.full((TILE, BLOCK_C), 0.0, tl.float64)
    for step in range(0, count, TILE):
        part = step + tl.arange(0, TILE)
        at = (first + part).to(tl.int64)[:, None] * channels + columns[None, :]
        keep = (part < count)[:, None] & inside[None, :]
        total += tl.load(partial_ptr + at, mask=keep, other=0.0).to(tl.float64)
    tl.store(
        out_ptr + (which * samples + sample) * channels + columns,
        tl.sum(total, axis=0).to(tl.float32).to(out_ptr.dtype.element_ty),
        mask=inside,
    )


def sum_partials(
    partial_KPC: Tensor,
    cu_seqlens: Tensor | None,
    rows: int,
    samples: int,
    rows_of_block: int,
    dtype: torch.dtype,
) -> Tensor:
    """Sum the partials of each sample in fp64, in a fixed order, and round: ``[K, B, C]``.

    Args:
        partial_KPC: K kinds of partial sums by slot, fp32; only slots with rows are read.
        cu_seqlens: int32 [B + 1], or None where all rows are one sample.
        rows: N.
        samples: B.
        rows_of_block: rows of one slot.
        dtype: of the result.
    """
    kinds, slots, channels = partial_KPC.shape
    out_KBC = partial_KPC.new_empty((kinds, samples, channels), dtype=dtype)
    _sum_partials[(block_count(channels, BLOCK_C), samples, kinds)](
        partial_KPC,
        out_KBC,
        partial_KPC if cu_seqlens is None else cu_seqlens,
        rows,
        samples,
        channels,
        slots,
        ROWS=rows_of_block,
        TILE=TILE,
        BLOCK_C=BLOCK_C,
        SEGMENTED=cu_seqlens is not None,
        num_warps=SUM_WARPS,
    )
    return out_KBC
