"""What a measured table of split counts is made of (torch-free)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TunedRow:
    """One shape: the split count to take there, and what it was chosen from.

    Attributes:
        query_heads: query heads; KV heads are the table's.
        tokens: tokens of each sequence.
        batch: sequences.
        splits: the count to take; 0 leaves the backend's own rule, which is then the fastest.
        us: microseconds a call with it.
        rule_us: microseconds a call by the backend's own rule.
        least_us: microseconds a call of the fastest count that was measured.
    """

    query_heads: int
    tokens: int
    batch: int
    splits: int
    us: float
    rule_us: float
    least_us: float


@dataclass(frozen=True, slots=True)
class TunedTable:
    """One device and backend.

    Attributes:
        device: the name that the driver gives it.
        sm_count: its SMs.
        backend: triton, fa2 or fa3, with the version in ``source``.
        kv_heads, kv_block: KV heads of all rows and tokens of a KV block.
        source: what was run, with versions and day.
        rows: the shapes.
    """

    device: str
    sm_count: int
    backend: str
    kv_heads: int
    kv_block: int
    source: str
    rows: tuple[TunedRow, ...]


OWN_RULE_SHARE = 1.005
"""The backend's own rule is kept where it is this near the fastest count: nothing is changed for
what a repeat would not show again (the tables' repeats scatter by a few tenths of a percent)."""


def row_of(query_heads: int, tokens: int, batch: int, us: Mapping[int, float]) -> TunedRow:
    """The row of a shape from the microseconds of every measured count, 0 the backend's own rule.

    The fastest count is taken, of equally fast ones the smallest.
    """
    least = min(us.values())
    fastest = min(splits for splits, value in us.items() if value == least)
    splits = 0 if us[0] <= OWN_RULE_SHARE * least else fastest
    return TunedRow(query_heads, tokens, batch, splits, us[splits], us[0], least)
