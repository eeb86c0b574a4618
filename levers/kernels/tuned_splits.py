"""The split count of a launch from a measured table, by device, backend and shape (torch-free).

A shape is known by its blocks b = batch x KV heads, its KV blocks n and, where the planner says so,
its query heads. Tables hold powers of two; a launch takes the row that is nearest in log2 of b and
n. Beyond a factor of two in either nothing was measured that says anything, and that is an error
and no guess.
"""

from __future__ import annotations

import math

from levers.errors import BadParameter
from levers.kernels.split_heuristic import OWN_RULE, DecodeShape
from levers.kernels.tuned_splits_h200 import TABLES
from levers.kernels.tuned_splits_table import TunedRow, TunedTable

DEFAULT_BACKEND = "triton"
"""Whose kernel is launched on CUDA where no lever names another."""
COMMAND = "python benchmarks/split_table.py"
"""Makes a table on the device that it runs on."""
FARTHEST = 1.0
"""In log2 of b and of n."""


def measured_on(sm_count: int) -> bool:
    """Whether there is a table of a device with that many SMs."""
    return any(table.sm_count == sm_count for table in TABLES)


def has_table(device: str, backend: str) -> bool:
    """Whether a backend was measured on a device."""
    return any((table.device, table.backend) == (device, backend) for table in TABLES)


def table_of(device: str, backend: str) -> TunedTable:
    """The table of a device and backend.

    Raises:
        BadParameter: there is none; the cure names the command that makes one.
    """
    for table in TABLES:
        if table.device == device and table.backend == backend:
            return table
    there = ", ".join(f"{table.backend} on {table.device}" for table in TABLES)
    raise BadParameter(
        f"no measured split table of {backend} on {device} (there are: {there})",
        cure=f"run `{COMMAND} --backend {backend}` there, or use auto or a number",
    )


def tuned_splits(shape: DecodeShape, splits: int, device: str) -> int:
    """The count that the table of a device says for a launch.

    It is at most the launch's KV blocks, as in flash-attention 2, unless the backend was measured
    with more pieces than blocks of ours: it then has smaller ones.

    Args:
        shape: the launch; ``backend`` empty is our Triton kernel.
        splits: what the rule below has chosen, taken where it was the fastest.
        device: the device's name.

    Raises:
        BadParameter: no table, or none of its rows is near the shape.
    """
    table = table_of(device, shape.backend or DEFAULT_BACKEND)
    row = nearest(table, shape)
    if row.splits == OWN_RULE:
        return splits
    more_than_blocks = row.splits > -(-row.tokens // table.kv_block)
    return row.splits if more_than_blocks else min(row.splits, shape.kv_blocks)


def nearest(table: TunedTable, shape: DecodeShape) -> TunedRow:
    """The row whose shape is nearest, of the same query heads where one of those is near.

    Of two equally near ones it is that of the larger batch.

    Raises:
        BadParameter: each is farther than a factor of two in blocks or KV blocks.
    """

    def order(row: TunedRow) -> tuple[bool, bool, float, int, int]:
        apart = _apart(table, row, shape)
        other_heads = shape.query_heads not in (0, row.query_heads)
        return max(apart) > FARTHEST, other_heads, sum(apart), -row.batch, -row.query_heads

    row = min(table.rows, key=order)
    if max(_apart(table, row, shape)) > FARTHEST:
        raise BadParameter(
            f"the split table of {table.backend} on {table.device} has no row near {shape.blocks} "
            f"blocks of {shape.kv_blocks} KV blocks (nearest: batch {row.batch}, {row.tokens})",
            cure=f"run `{COMMAND} --tokens {shape.kv_tokens} --batch {shape.batch}` there",
        )
    return row


def _apart(table: TunedTable, row: TunedRow, shape: DecodeShape) -> tuple[float, float]:
    """Distances in log2 of the blocks and of the KV blocks."""
    blocks = math.log2(shape.blocks / (row.batch * table.kv_heads))
    kv_blocks = math.log2(shape.kv_blocks / -(-row.tokens // table.kv_block))
    return abs(blocks), abs(kv_blocks)
