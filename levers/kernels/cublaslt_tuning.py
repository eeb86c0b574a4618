"""Which of several algorithms is kept: each runs in turn, on a device that is as busy as in a step.

The first is left for a clear gain alone.

Pure but for the device's events, so that the rule can be tested without one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

CLEAR_GAIN = 0.02
"""Share of the first proposal's time that another must save: below it, noise would pick the winner,
and processes of one arm would not agree on it."""

WARM_CALLS, ROUNDS = 1, 5
"""Calls of each candidate before and while it is timed. The rounds go over all candidates, so that
a clock that falls while the device warms up meets each of them."""

LOAD_US = 60_000.0
"""Work before the first timed call, in microseconds on the device. A training step keeps an H200 at
its power limit, with the clock some 15 % below what a burst on an idle device gets; the algorithm
that needs the least energy is then the fast one, and a burst would choose another."""

MOST_LOAD_CALLS = 500

IN_A_ROW = 3
"""Calls between two events: the second and third are launched while the first one runs."""


def best(times_us: Sequence[float]) -> int:
    """The index of the candidate to keep: the fastest, or the first where the gain is not clear.

    Raises:
        ValueError: there is none.
    """
    if not times_us:
        raise ValueError("no algorithm to choose from")
    fastest = min(range(len(times_us)), key=times_us.__getitem__)
    clear = times_us[fastest] < (1 - CLEAR_GAIN) * times_us[0]
    return fastest if clear else 0


def interleaved_us(
    calls: Sequence[Callable[[], None]], clock: Callable[[Callable[[], None]], float]
) -> list[float]:
    """The median time of each call, the rounds going over all of them."""
    for call in calls:
        for _ in range(WARM_CALLS):
            call()
    rounds = [[clock(call) for call in calls] for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def put_under_load(call: Callable[[], None], clock: Callable[[Callable[[], None]], float]) -> None:
    """Keep the device at work on one call until its clock has settled."""
    spent_us = 0.0
    for _ in range(MOST_LOAD_CALLS):
        if spent_us >= LOAD_US:
            return
        spent_us += IN_A_ROW * clock(call)


def device_us(call: Callable[[], None]) -> float:
    """Microseconds of a call, of several in a row between two events on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(IN_A_ROW):
        call()
    end.record()
    end.synchronize()
    return 1e3 * float(start.elapsed_time(end)) / IN_A_ROW
