"""Seconds of the parts of untimed work, for the facts of a sample."""

from __future__ import annotations

import time
from collections.abc import Callable

from experiments.values import Scalar


class Stopwatch:
    """Runs from its making; each lap is the time since the one before.

    Attributes:
        laps: seconds by name, rounded to a hundredth; laps of one name are added.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, clock()
        self.laps: dict[str, Scalar] = {}
        self._sums: dict[str, float] = {}

    def lap(self, name: str) -> float:
        """End a part; its seconds."""
        now = self._clock()
        took, self._last = now - self._last, now
        self._sums[name] = self._sums.get(name, 0.0) + took
        self.laps[name] = round(self._sums[name], 2)
        return took
