from __future__ import annotations

import pytest

from experiments.power import (
    expected_pairs,
    pairs_for_half_width,
    pairs_to_settle,
    power_at,
    smallest_seen,
)
from tests.support.evidence_factory import C1, LOOKS, effect, repeating


@pytest.mark.parametrize(("delta", "pairs"), [(0.5, 30), (1, 15), (2, 8), (3, 6)])
def test_expected_pairs_are_those_of_the_published_table(delta: float, pairs: int) -> None:
    assert expected_pairs(LOOKS, delta) == pytest.approx(pairs, abs=1)


def test_power_rises_with_the_looks_and_with_the_effect() -> None:
    powers = power_at(LOOKS, 1.0)
    assert list(powers) == sorted(powers)
    assert power_at(LOOKS, 0.5)[-1] < powers[-1] <= 1


def test_without_an_effect_power_is_half_the_error_of_a_look() -> None:
    assert power_at(LOOKS, 0.0)[-1] == pytest.approx(0.0348 / 2, rel=1e-6)


def test_the_smallest_effect_seen_has_the_power_asked_for() -> None:
    sd = 0.02
    assert power_at(LOOKS, smallest_seen(LOOKS, sd) / sd)[-1] == pytest.approx(0.8, abs=1e-6)


def test_a_narrower_interval_takes_more_pairs() -> None:
    few, many = (pairs_for_half_width(0.01, width, 0.0348) for width in (0.01, 0.005))
    assert few is not None
    assert many is not None
    assert few < many
    assert pairs_for_half_width(0.01, 0.005, 0.0348, unit_pairs=2) == 2 * many


def test_no_number_of_pairs_tells_an_effect_from_a_boundary_that_it_is_on() -> None:
    assert pairs_for_half_width(0.01, 0.0, 0.0348) is None
    assert pairs_for_half_width(1.0, 1e-6, 0.0348) is None
    assert pairs_to_settle(repeating(C1, 1.0), 0.01, 0.0348) is None


def test_an_effect_near_a_boundary_takes_more_pairs_to_settle() -> None:
    near, far = (pairs_to_settle(effect(C1, (e, e - 3, e + 3)), -0.01, 0.0348) for e in (-0.5, 0))
    assert near is not None
    assert far is not None
    assert near > far > 40
