from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as oracle
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.multitest import multipletests

from experiments.records import LostPair
from experiments.sequential import ALPHA, nominal_p
from experiments.stats import (
    PairValues,
    binomial_p,
    effect_of,
    effects_at,
    fitted,
    half_width,
    holm,
    lag_one,
    p_above,
    p_below,
    p_of_shift,
    paired,
    untrusted,
)
from levers.policy import Axis
from tests.support.evidence_factory import LOOKS, sample

CASES = json.loads((Path(__file__).parents[1] / "cases" / "repeated_intervals.json").read_text())
RATE = Axis("decode/tok_s/c1", "tok/s", True)
TIME = Axis("decode/ttft_ms/p50", "ms", False)


def series(n: int = 40, sd: float = 0.01, effect: float = 0.0, seed: int = 1):
    rng = np.random.default_rng(seed)
    orders = np.tile([1.0, -1.0, -1.0, 1.0], n)[:n]
    return effect + rng.normal(0, sd, n), orders


def pairs(n: int, ratio: float = 1.05, axis: Axis = RATE, seed: int = 3, sd: float = 0.01):
    rng = np.random.default_rng(seed)
    return [
        PairValues(
            i, 1 if i % 4 in (0, 3) else -1, {axis.name: 100.0}, {axis.name: 100.0 * ratio * e}
        )
        for i, e in enumerate(np.exp(rng.normal(0, sd, n)))
    ]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_repeated_intervals_are_those_of_the_published_vectors(case: int) -> None:
    vector = CASES[case]
    assert [look["n"] for look in vector["looks"]] == list(LOOKS)
    for index, look in enumerate(vector["looks"]):
        n = look["n"]
        d, orders = np.array(vector["d"][:n]), np.array(vector["order"][:n], dtype=float)
        effect = effect_of("axis", d, orders, LOOKS, index)
        assert effect is not None
        assert effect.nominal_p == look["p"]
        assert effect.unit_pairs == 1
        assert effect.estimate == pytest.approx(look["estimate"], abs=2e-9)
        assert effect.lower == pytest.approx(look["lower"], abs=2e-9)
        assert effect.upper == pytest.approx(look["upper"], abs=2e-9)


def test_the_fit_is_that_of_ordinary_least_squares() -> None:
    d, orders = series(13, seed=5)
    expected = OLS(d, np.column_stack([np.ones_like(orders), orders])).fit()
    fit = fitted(d, orders)
    assert fit is not None
    assert fit.estimate == pytest.approx(expected.params[0], rel=1e-12)
    assert fit.stderr == pytest.approx(expected.bse[0], rel=1e-10)
    assert fit.sd == pytest.approx(math.sqrt(expected.mse_resid), rel=1e-10)
    assert fit.dof == expected.df_resid


def test_pairs_of_one_order_only_give_no_effect() -> None:
    assert fitted(np.array([0.1, 0.2, 0.3]), np.ones(3)) is None
    assert effect_of("axis", np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), np.ones(6), LOOKS, 0) is None


def test_the_order_effect_does_not_enter_the_estimate() -> None:
    d, orders = series(40, effect=0.02)
    plain = effect_of("axis", d, orders, LOOKS, 5)
    shifted = effect_of("axis", d + 0.05 * orders, orders, LOOKS, 5)
    assert plain is not None
    assert shifted is not None
    assert shifted.estimate == pytest.approx(plain.estimate, abs=1e-12)
    assert shifted.sd == pytest.approx(plain.sd, rel=1e-9)


def test_an_effect_is_positive_where_the_candidate_is_better() -> None:
    faster = effects_at(pairs(6, 1.05), [RATE], LOOKS, 0)
    longer = effects_at(pairs(6, 1.05, TIME), [TIME], LOOKS, 0)
    assert faster[0].estimate > 0.03
    assert longer[0].estimate < -0.03


def test_a_look_uses_its_own_number_of_valid_pairs_only() -> None:
    many = pairs(20)
    assert effects_at(many, [RATE], LOOKS, 1) == effects_at(many[:9], [RATE], LOOKS, 1)
    with pytest.raises(ValueError, match="the look needs 6"):
        effects_at(many[:5], [RATE], LOOKS, 0)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, None])
def test_an_axis_with_a_value_that_has_no_logarithm_has_no_effect(value: float | None) -> None:
    broken = pairs(6)
    values = {} if value is None else {RATE.name: value}
    broken[2] = PairValues(2, 1, {RATE.name: 100.0}, values)
    assert effects_at(broken, [RATE], LOOKS, 0) == ()


def test_pairs_without_both_sides_and_lost_pairs_do_not_count() -> None:
    samples = [sample(pair, arm, {RATE.name: 1.0}) for pair in range(4) for arm in ("ref", "cand")]
    samples += [sample(4, "ref", {RATE.name: 1.0}), sample(0, "oracle", {RATE.name: 1.0})]
    lost = [LostPair(pair=1, arm="ref", cause="x"), LostPair(pair=2, arm="oracle", cause="x")]
    assert [pair.pair for pair in paired(samples, lost)] == [0, 2, 3]


def test_of_two_samples_of_one_run_the_later_counts() -> None:
    samples = [
        sample(0, "ref", {"a": 1.0}),
        sample(0, "cand", {"a": 2.0}),
        sample(0, "ref", {"a": 3.0}),
    ]
    assert [dict(pair.ref) for pair in paired(samples, [])] == [{"a": 3.0}]


def test_an_axis_that_repeats_exactly_is_compared_directly() -> None:
    d = np.full(6, -0.009) + np.array([0, 1e-6, 0, 2e-6, 0, 0])
    effect = effect_of("memory/peak_bytes", d, np.array([1, -1, 1, -1, 1, -1.0]), LOOKS, 0)
    assert effect is not None
    assert (effect.kind, effect.lower) == ("deterministic", -0.009)
    assert p_below(effect, -0.01) == 1.0
    assert p_below(effect, -0.0085) == 0.0
    assert p_of_shift(effect, -0.009) == 1.0


def test_correlated_pairs_are_taken_two_by_two_with_their_own_degrees_of_freedom() -> None:
    rng = np.random.default_rng(0)
    steps = np.repeat(rng.normal(0, 0.01, 20), 2) + rng.normal(0, 0.001, 40)
    orders = np.tile([1.0, -1.0, -1.0, 1.0], 10)
    effect = effect_of("axis", steps, orders, LOOKS, 5)
    assert effect is not None
    assert (effect.unit_pairs, effect.units, effect.dof) == (2, 20, 18)
    assert effect.nominal_p == nominal_p((3, 4, 6, 9, 12, 20), 5)
    assert not untrusted(effect)


def test_units_that_stay_correlated_prove_nothing() -> None:
    walk = np.cumsum(np.full(40, 0.002)) + 0.05
    effect = effect_of("axis", walk, np.tile([1.0, -1.0, -1.0, 1.0], 10), LOOKS, 5)
    assert effect is not None
    assert effect.unit_pairs == 2
    assert untrusted(effect)
    assert effect.lower > 0
    assert p_above(effect, 0.0) == 1.0


def test_independent_pairs_are_seldom_called_correlated() -> None:
    called = 0
    for seed in range(400):
        d, orders = series(25, seed=seed)
        effect = effect_of("axis", d, orders, LOOKS, 4)
        called += effect is not None and effect.unit_pairs == 2
    assert called <= 24


def test_p_of_a_shift_agrees_with_the_interval() -> None:
    d, orders = series(18, effect=0.01, seed=9)
    effect = effect_of("axis", d, orders, LOOKS, 3)
    assert effect is not None
    assert p_of_shift(effect, effect.lower) == pytest.approx(effect.nominal_p, rel=1e-6)
    assert p_of_shift(effect, effect.upper) == pytest.approx(effect.nominal_p, rel=1e-6)
    t = effect.estimate / effect.stderr
    assert p_of_shift(effect, 0.0) == pytest.approx(2 * oracle.t.sf(abs(t), effect.dof), rel=1e-9)
    assert p_above(effect, 0.0) == p_of_shift(effect, 0.0)
    assert p_below(effect, 0.0) == 1.0


def test_p_of_a_shift_agrees_with_an_anytime_interval() -> None:
    d, orders = series(30, effect=0.01, seed=9)
    effect = effect_of("axis", d, orders, (30,), 0, "anytime")
    assert effect is not None
    assert (effect.kind, effect.nominal_p) == ("sequence", ALPHA)
    assert p_of_shift(effect, effect.lower) == pytest.approx(ALPHA, rel=1e-6)


def test_an_anytime_interval_is_wider_than_a_planned_one() -> None:
    d, orders = series(40)
    planned = effect_of("axis", d, orders, LOOKS, 5)
    anytime = effect_of("axis", d, orders, LOOKS, 5, "anytime")
    assert planned is not None
    assert anytime is not None
    assert half_width(anytime) > half_width(planned)


def test_holm_rejects_what_statsmodels_rejects() -> None:
    rng = np.random.default_rng(4)
    for _ in range(8):
        ps = list(rng.uniform(0, 0.02, rng.integers(1, 8)))
        assert holm(ps, 0.0151) == tuple(multipletests(ps, alpha=0.0151, method="holm")[0])


def test_the_binomial_p_is_exact() -> None:
    assert binomial_p(0, 8) == pytest.approx(oracle.binomtest(0, 8).pvalue)
    assert binomial_p(2, 0) == pytest.approx(0.5)
    assert binomial_p(5, 5) == 1.0
    assert binomial_p(0, 0) == 1.0


def test_residuals_of_zero_have_no_autocorrelation() -> None:
    assert lag_one(np.zeros(5)) == 0.0
