"""A twin of the split cap that gives a wrong token in every step, and is much faster."""

from __future__ import annotations

from typing import Any

from benchmarks.twin_lever import Twin


def wrong(tokens_B: Any, step_s: float) -> tuple[Any, str]:
    """Move every token to its neighbour."""
    del step_s
    tokens_B.bitwise_xor_(1)
    return tokens_B, "after=wrong"


LEVER = Twin("fa2_nsplits_cap_wrong", "the split cap, and wrong", wrong)
