from __future__ import annotations

import math

import pytest
from scipy import stats as oracle

from experiments.records import ArmFailure, LostPair, Sample
from experiments.states import axis_states, oracle_pairs
from experiments.workloads.base import Target
from levers.policy import Axis
from tests.support.evidence_factory import sample

RATE = Axis("decode/tok_s/c1", "tok/s", True)
TIME = Axis("decode/ttft_ms/p50", "ms", False)
AT_PAR = Target(RATE.name, "oracle")


def oracle_runs(ratios: list[float], axis: Axis = RATE, **changes) -> tuple[Sample, ...]:
    """Oracle pairs whose reference is this many times the oracle's value."""
    runs = []
    for block, ratio in enumerate(ratios):
        runs.append(sample(4 * block, "oracle-ref", {axis.name: 100.0 * ratio}))
        runs.append(sample(4 * block, "oracle", {axis.name: 100.0}, **changes))
    return tuple(runs)


def state_of(samples, target: Target = AT_PAR, axis: Axis = RATE, **changes):
    values = {"untargeted": "wanted", "oracle": "sdpa", "samples": samples}
    return axis_states([axis], [target], **{**values, **changes})[0]


def test_a_reference_below_the_oracle_fails_and_one_above_passes() -> None:
    assert state_of(oracle_runs([0.965, 0.966, 0.964])).state == "failing"
    assert state_of(oracle_runs([1.020, 1.019, 1.021])).state == "passing"


def test_an_interval_across_the_target_is_undecided() -> None:
    assert state_of(oracle_runs([0.98, 1.01, 1.02])).state == "undecided"


def test_one_oracle_pair_decides_nothing() -> None:
    state = state_of(oracle_runs([0.5]))
    assert (state.state, state.runs, state.missing) == ("undecided", 1, "")


def test_the_interval_is_that_of_students_t_at_95_percent() -> None:
    ratios = [0.96, 0.97, 0.965, 0.955]
    state = state_of(oracle_runs(ratios))
    logs = [math.log(ratio) for ratio in ratios]
    low, high = oracle.t.interval(
        0.95, len(logs) - 1, loc=sum(logs) / len(logs), scale=oracle.sem(logs)
    )
    assert state.lower == pytest.approx(math.exp(low))
    assert state.upper == pytest.approx(math.exp(high))


def test_where_less_is_better_the_ratio_is_turned_round() -> None:
    slower = state_of(oracle_runs([1.05, 1.051, 1.049], TIME), Target(TIME.name, "oracle"), TIME)
    assert slower.state == "failing"
    assert slower.ratio == pytest.approx(1 / 1.05, rel=1e-3)


def test_the_ratio_is_held_against_the_share_of_the_target() -> None:
    runs = oracle_runs([0.95, 0.951, 0.949])
    assert state_of(runs, Target(RATE.name, "roofline", 0.9)).state == "passing"
    assert state_of(runs, Target(RATE.name, "roofline", 0.98)).state == "failing"
    assert state_of(runs, Target(RATE.name, "roofline", 0.9)).ratio == pytest.approx(0.95 / 0.9)


@pytest.mark.parametrize("untargeted", ["wanted", "ignored"])
def test_an_axis_without_a_target_is_wanted_or_ignored(untargeted: str) -> None:
    state = axis_states([RATE], [], untargeted, "sdpa", oracle_runs([0.9, 0.9]))[0]
    assert (state.state, state.ratio) == (untargeted, None)


def test_an_oracle_that_was_not_measured_leaves_the_axis_undecided() -> None:
    assert "no complete pair" in state_of(()).missing
    assert "none was measured" in state_of((), oracle=None).missing
    assert state_of(()).state == "undecided"


def test_an_oracle_that_failed_is_named_even_if_earlier_runs_are_there() -> None:
    failure = ArmFailure(arm="oracle", kind="crashed", stage="warm-up", message="no such kernel")
    state = state_of(oracle_runs([0.9, 0.9, 0.9]), failures=(failure,))
    assert state.state == "undecided"
    assert "no such kernel" in state.missing


def test_an_oracle_that_does_not_report_the_axis_is_missing_there() -> None:
    state = state_of(oracle_runs([0.9, 0.9], TIME))
    assert (state.state, state.missing) == (
        "undecided",
        "the oracle sdpa reports no decode/tok_s/c1",
    )


def test_lost_oracle_runs_are_left_out() -> None:
    runs = oracle_runs([0.9, 1.5, 0.9, 0.901])
    lost = [LostPair(pair=4, arm="oracle", cause="foreign process")]
    assert [reference.pair for reference, _ in oracle_pairs(runs, lost)] == [0, 8, 12]
    assert state_of(runs, lost=lost).state == "failing"
    elsewhere = [LostPair(pair=4, arm="cand", cause="foreign process")]
    assert len(oracle_pairs(runs, elsewhere)) == 4


def test_the_runs_of_the_effect_are_not_read() -> None:
    runs = oracle_runs([0.965, 0.966, 0.964])
    own = (sample(0, "ref", {RATE.name: 900.0}), sample(0, "cand", {RATE.name: 1.0}))
    assert state_of(runs + own) == state_of(runs)


def test_how_the_oracle_ran_is_kept() -> None:
    runs = oracle_runs([0.9, 0.9], telemetry={"oracle_mode": "compiled"})
    assert state_of(runs).oracle_mode == "compiled"


def test_a_wild_interval_stays_a_finite_factor() -> None:
    state = state_of(oracle_runs([1e-300, 1e300]))
    assert state.state == "undecided"
    assert state.upper is not None
    assert math.isfinite(state.upper)
