"""A twin of the split cap that does more than the redundant work: 20 % slower, exact."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.twin_lever import Twin

WORK = 0.25 + 0.25 * 1.25
"""Share of the step that is spent after it: the whole then takes 1.25 times the reference's."""


def more(tokens_B: Any, step_s: float) -> tuple[Any, str]:
    """Keep the core busy for longer than the reference does."""
    end = time.perf_counter() + WORK * step_s
    while time.perf_counter() < end:
        pass
    return tokens_B, f"after={WORK}"


LEVER = Twin("fa2_nsplits_cap_slow", "the split cap, and 20 % slower", more)
