from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as oracle

from experiments.sequential import (
    ALPHA,
    PRINTED,
    computed_ps,
    nominal_p,
    nominal_ps,
    spent,
    t_mixture_half_width,
    t_mixture_p,
)

DEFAULT = (6, 9, 13, 18, 25, 40)
HALF_WIDTHS = (2.65, 1.45, 0.95, 0.70, 0.53, 0.35)


def crossings(looks: tuple[int, ...], ps: tuple[float, ...], runs: int, seed: int) -> float:
    """Share of normal random walks that cross the boundary at some look (known variance)."""
    rng = np.random.default_rng(seed)
    increments = rng.normal(size=(runs, looks[-1])).cumsum(axis=1)
    z = np.abs(increments[:, np.array(looks) - 1]) / np.sqrt(looks)
    return float((z > oracle.norm.isf(np.array(ps) / 2)).any(axis=1).mean())


def test_the_default_looks_have_the_printed_p() -> None:
    assert nominal_ps(DEFAULT) == (0.0029, 0.0034, 0.0056, 0.0088, 0.0151, 0.0348)


def test_the_computed_p_agree_with_the_printed_ones() -> None:
    assert computed_ps(DEFAULT) == pytest.approx(PRINTED[DEFAULT], abs=1.5e-4)


def test_the_first_look_spends_its_own_share_and_a_single_look_all_of_it() -> None:
    assert computed_ps((6, 40))[0] == pytest.approx(spent(6, 40), rel=1e-9)
    assert computed_ps((40,))[0] == pytest.approx(ALPHA, rel=1e-9)


def test_half_widths_are_those_of_the_printed_table() -> None:
    for n, p, expected in zip(DEFAULT, nominal_ps(DEFAULT), HALF_WIDTHS, strict=True):
        assert oracle.t.isf(p / 2, n - 2) / math.sqrt(n) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize(
    "looks", [DEFAULT, (6, 12), (4, 8, 16, 24), (10, 20, 40, 80, 120), tuple(range(6, 61, 2))]
)
def test_the_error_over_all_looks_is_five_percent(looks: tuple[int, ...]) -> None:
    runs = 40_000
    rate = crossings(looks, nominal_ps(looks), runs, seed=len(looks))
    assert rate == pytest.approx(ALPHA, abs=3.5 * math.sqrt(ALPHA * (1 - ALPHA) / runs))


def test_two_looks_have_the_exact_joint_error() -> None:
    looks = (20, 40)
    first, last = (oracle.norm.isf(p / 2) for p in computed_ps(looks))
    correlation = math.sqrt(0.5)
    joint = oracle.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]])
    inside = joint.cdf([first, last], lower_limit=[-first, -last])
    assert 1 - inside == pytest.approx(ALPHA, abs=1e-6)


def test_many_close_looks_are_still_resolved() -> None:
    ps = computed_ps(tuple(range(30, 61)))
    assert all(0 < p < ALPHA for p in ps)
    assert crossings(tuple(range(30, 61)), ps, 20_000, seed=2) == pytest.approx(ALPHA, abs=0.006)


@pytest.mark.parametrize("looks", [(), (0, 5), (6, 6), (9, 6)])
def test_looks_that_do_not_rise_are_refused(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="looks must rise"):
        nominal_ps(looks)


def test_looks_that_fall_together_in_units_share_their_p() -> None:
    in_units = (3, 3, 6)
    assert nominal_p(in_units, 0) == nominal_p(in_units, 1) == nominal_p((3, 6), 0)


def test_an_anytime_look_has_the_whole_error() -> None:
    assert nominal_p(DEFAULT, 0, "anytime") == ALPHA


def test_the_mixture_half_width_is_the_published_formula() -> None:
    n, sd, g = 12, 0.02, 1.0
    r = 1 + n * g
    K = (math.sqrt(r) / ALPHA) ** (2 / n)
    x = (K - 1) / (1 - K / r)
    expected = sd * math.sqrt((n - 1) * x / n)
    assert t_mixture_half_width(sd / math.sqrt(n), n - 1, n) == pytest.approx(expected, rel=1e-12)


def test_the_mixture_interval_is_infinite_where_too_little_is_known() -> None:
    assert t_mixture_half_width(0.01, 1, 3) == math.inf


def test_the_mixture_p_is_alpha_at_the_edge_of_the_interval() -> None:
    half = t_mixture_half_width(1.0, 10, 12)
    assert t_mixture_p(half, 10, 12) == pytest.approx(ALPHA, rel=1e-9)
    assert t_mixture_p(0.0, 10, 12) == 1.0


def test_the_sequence_covers_at_every_look_at_once() -> None:
    """Peeking after each of 4 to 60 pairs errs in at most 5 % of runs."""
    rng = np.random.default_rng(11)
    runs, most = 4_000, 60
    walks = rng.normal(size=(runs, most))
    missed = np.zeros(runs, dtype=bool)
    for n in range(4, most + 1):
        seen = walks[:, :n]
        stderr = seen.std(axis=1, ddof=1) / math.sqrt(n)
        half = t_mixture_half_width(1.0, n - 1, n)
        missed |= np.abs(seen.mean(axis=1)) > half * stderr
    assert missed.mean() <= ALPHA
