from __future__ import annotations

import pytest

from experiments.steadiness import FEWEST, leading_slow, slow_starts
from tests.support.evidence_factory import C1, sample


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        ([5.0, 5.0, *[1.0] * 18], 2),
        ([1.9, *[1.0] * 19], 0),
        ([1.0, 9.0, *[1.0] * 18], 0),
        ([5.0] * (FEWEST - 1), 0),
        ([9.0, *[1.0] * (FEWEST - 1)], 1),
    ],
)
def test_only_an_unbroken_run_of_slow_values_at_the_beginning_counts(
    times: list[float], slow: int
) -> None:
    assert leading_slow(times) == slow


def test_lists_that_are_no_times_and_a_start_that_is_rarely_slow_are_left_out() -> None:
    slow, steady = (5.0, *[1.0] * 19), (1.0,) * 20
    samples = [
        sample(pair, "ref", {C1: 1.0}, raw={"step_s": slow if pair == 0 else steady, "loss": slow})
        for pair in range(4)
    ]
    assert slow_starts(samples) == ()
    often = [sample(pair, "ref", {C1: 1.0}, raw={"gaps_ms/c1": slow}) for pair in range(3)]
    assert "gaps_ms/c1 began with 1 slow values in 3 of 3" in slow_starts(often)[0]
