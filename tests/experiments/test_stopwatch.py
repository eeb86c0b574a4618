"""The stopwatch of untimed parts."""

from __future__ import annotations

from experiments.stopwatch import Stopwatch


def test_laps_of_one_name_are_added() -> None:
    times = iter((10.0, 11.5, 12.0, 15.0))
    watch = Stopwatch(lambda: next(times))
    assert watch.lap("a") == 1.5
    assert watch.lap("b") == 0.5
    assert watch.lap("a") == 3.0
    assert watch.laps == {"a": 4.5, "b": 0.5}
