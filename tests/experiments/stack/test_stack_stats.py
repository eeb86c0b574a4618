from __future__ import annotations

import math

import pytest

from experiments.stack.records import Contrast, StackRecord
from experiments.stack.stats import analysed, holm_p
from tests.support import stack_factory as factory
from tests.support.stack_factory import RATE, STEP, adding

GAINS = {"a": math.log(2.1), "b": math.log(1.15), "c": 0.0}


def estimate(one: Contrast, axis: str = RATE.name) -> float:
    effect = one.effect(axis)
    assert effect is not None
    return effect.estimate


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_lever_gets_what_it_brings_and_the_logs_add_up_to_the_whole(interleaved: bool) -> None:
    of = factory.spec(interleaved=interleaved)
    found = analysed(factory.record(of, adding(**GAINS)))
    for gain, (name, planted) in zip(found.gains, GAINS.items(), strict=True):
        effect = gain.effect(RATE.name)
        assert effect is not None
        assert gain.name == name
        assert effect.estimate == pytest.approx(planted, abs=0.01)
        assert effect.upper - effect.lower < 0.05
    assert found.total is not None
    assert found.log_sum == pytest.approx(estimate(found.total), abs=1e-12)


def test_the_intervals_hold_the_truth_as_often_as_they_say() -> None:
    of, held, count = factory.spec(pair=False), 0, 60
    for seed in range(count):
        found = analysed(factory.record(of, adding(**GAINS), seed=seed, drift=0.01))
        for gain, planted in zip(found.gains, GAINS.values(), strict=True):
            effect = gain.effect(RATE.name)
            assert effect is not None
            held += effect.lower <= planted <= effect.upper
    assert 0.90 <= held / (3 * count) <= 0.99


def test_rows_that_take_turns_bear_moments_that_would_hide_every_gain() -> None:
    of = factory.spec(interleaved=True)
    found = analysed(factory.record(of, adding(**GAINS), noise=0.003))
    first = found.gains[0].effect(RATE.name)
    assert first is not None
    assert first.upper - first.lower < 0.02
    rates = [values[RATE.name] for values in found.values[:4]]
    assert math.log(rates[1] / rates[0]) == pytest.approx(first.estimate, abs=1e-9)


def test_a_drift_inside_the_blocks_is_no_gain() -> None:
    record = factory.record(factory.spec(), adding(a=0.0, b=0.0, c=0.0), noise=0.001, drift=0.02)
    found = analysed(record)
    for gain in (*found.gains, *found.interactions):
        effect = gain.effect(RATE.name)
        assert effect is not None
        assert effect.lower < 0 < effect.upper
        assert abs(effect.estimate) < 0.005


def test_the_sign_is_better_for_axes_of_both_directions() -> None:
    found = analysed(factory.record(factory.spec(), adding(**GAINS)))
    assert estimate(found.gains[0], STEP.name) == pytest.approx(estimate(found.gains[0]))


def test_levers_that_take_each_others_gain_in_are_seen_to_overlap() -> None:
    def once(names: list[str]) -> float:
        return 0.3 if {"a", "b"} & set(names) else 0.0

    found = analysed(factory.record(factory.spec(), once))  # type: ignore[arg-type]
    assert estimate(found.gains[0]) == pytest.approx(0.3, abs=0.02)
    assert estimate(found.gains[1]) == pytest.approx(0.0, abs=0.02)
    (crossed,) = found.interactions
    assert estimate(crossed) == pytest.approx(-0.3, abs=0.03)
    assert crossed.p is not None
    assert crossed.p < 0.01
    assert estimate(found.left_out[0]) == pytest.approx(0.0, abs=0.02)


def test_independent_levers_do_not_interact() -> None:
    (crossed,) = analysed(factory.record(factory.spec(), adding(**GAINS))).interactions
    effect = crossed.effect(RATE.name)
    assert effect is not None
    assert effect.lower < 0 < effect.upper


def test_a_row_that_failed_takes_its_gains_with_it_and_says_so() -> None:
    found = analysed(factory.record(factory.spec(), adding(**GAINS), failed=[2]))
    assert [bool(gain.effects) for gain in found.gains] == [True, False, False]
    assert "out-of-memory" in found.gains[1].missing
    assert found.log_sum is None
    assert found.total is not None
    assert found.total.effects
    assert not found.values[2]


def test_a_block_counts_only_with_its_mirror() -> None:
    assert analysed(factory.record(factory.spec(8), adding(**GAINS), blocks=7)).blocks == tuple(
        range(6)
    )
    assert analysed(factory.record(factory.spec(8), adding(**GAINS), lost=[3])).blocks == (
        *(0, 1),
        *(4, 5, 6, 7),
    )


def test_too_few_blocks_give_no_table() -> None:
    found = analysed(factory.record(factory.spec(), adding(**GAINS), blocks=3))
    assert not found.gains
    assert found.total is None


def test_a_lever_whose_sites_ran_the_same_is_inert() -> None:
    record = factory.record(factory.spec(), adding(**GAINS))
    same = [
        one.model_copy(update={"plans": {**one.plans, f"b: {RATE.name}": "kernel=plain"}})
        for one in record.evidence
    ]
    found = analysed(StackRecord(**{**dict(record), "evidence": tuple(same)}))
    assert [gain.inert for gain in found.gains] == [False, True, False]


def test_adjusted_p_values_are_those_of_holm() -> None:
    assert holm_p([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm_p([0.9, 0.8]) == (1.0, 1.0)
    assert holm_p([]) == ()
