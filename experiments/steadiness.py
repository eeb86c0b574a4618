"""Whether the timed work of a process was steady from its first step, or warm-up was too short."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from experiments.records import Sample

FEWEST = 10
"""Repeats below which a slow beginning cannot be told from noise."""

SLOW = 2.0
"""A beginning counts as slow above this multiple of the later half's median; loading a library or
filling a cache costs several times a step, jitter of the first step does not."""

UNITS = ("_s", "_ms")
"""Endings of the names of raw times (``step_s``, ``gaps_ms/c1``); other lists are no times."""


def leading_slow(times: Sequence[float]) -> int:
    """How many values from the first on are above :data:`SLOW` times the later half's median."""
    if len(times) < FEWEST:
        return 0
    bound = SLOW * median(times[len(times) // 2 :])
    return next((i for i, value in enumerate(times) if value <= bound), len(times))


def slow_starts(samples: Iterable[Sample]) -> tuple[str, ...]:
    """A sentence for each arm and list of raw times that began slowly in most of its processes."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for sample in samples:
        for name, values in sample.raw.items():
            if name.split("/")[0].endswith(UNITS) and len(values) >= FEWEST:
                found[sample.arm, name].append(leading_slow(values))
    return tuple(
        f"{arm}: {name} began with {round(median(counts))} slow values in {sum(map(bool, counts))} "
        f"of {len(counts)} processes; a longer warm-up would leave them out"
        for (arm, name), counts in sorted(found.items())
        if 2 * sum(map(bool, counts)) > len(counts)
    )
