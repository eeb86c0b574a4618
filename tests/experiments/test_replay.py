from __future__ import annotations

import math

import pytest

from experiments.records import ArmFailure, LostPair
from experiments.replay import decide_again, decide_record, evidence_of, look_at, looks_of
from experiments.run_record import RunRecord
from levers.policy import Guard, ParityClass
from tests.support.evidence_factory import C1, C2, GUARD, policy, sample, witnesses
from tests.support.run_factory import drawn, record

WIN = {C1: 0.05, C2: 0.04}


def decided(run: RunRecord) -> RunRecord:
    """The run as it is stored once it has its decision."""
    return run.model_copy(update={"status": "decided", "decision": decide_again(run)})


def test_a_win_on_failing_axes_is_default_on_at_the_first_look_that_shows_it() -> None:
    decision = decide_again(record(drawn(40, WIN)))
    assert (decision.outcome.value, decision.reason) == ("default-ON", "failing-axis-win")
    assert decide_record(record(drawn(40, WIN)[:8])) is None


@pytest.mark.parametrize(
    ("effects", "ratio", "claims", "expected"),
    [
        (WIN, 0.95, ParityClass.LOSSLESS, "failing-axis-win"),
        (WIN, 1.05, ParityClass.LOSSLESS, "no-failing-axis-win"),
        ({}, 0.95, ParityClass.LOSSLESS, "not-worth-keeping"),
        ({C1: -0.05}, 0.95, ParityClass.LOSSLESS, "regression"),
        ({GUARD: -0.05, **WIN}, 0.95, ParityClass.LOSSLESS, "regression"),
        ({}, 0.95, ParityClass.BYTE_EXACT, "byte-exact"),
        ({C1: -0.005}, 0.95, ParityClass.BYTE_EXACT, "slower"),
    ],
)
def test_planted_effects_get_their_reason_from_raw_samples(
    effects: dict[str, float], ratio: float, claims: ParityClass, expected: str
) -> None:
    run = record(drawn(40, effects, sd=0.002, ratio=ratio), claims)
    assert decide_again(run).reason == expected


def test_a_stored_record_gives_the_identical_decision_after_a_round_trip() -> None:
    for effects in (WIN, {}, {C1: -0.05}, {C1: 0.01}):
        for sd in (0.002, 0.02):
            stored = decided(record(drawn(40, effects, sd=sd)))
            again = RunRecord.model_validate_json(stored.model_dump_json())
            assert decide_again(again) == stored.decision


def test_the_decision_is_the_same_whether_it_is_asked_after_each_pair_or_at_the_end() -> None:
    samples = drawn(40, {C1: 0.012}, sd=0.004, seed=5)
    for count in range(len(samples) + 1):
        live = decide_record(record(samples[:count]))
        if live is not None:
            break
    assert live is not None
    assert count < len(samples)
    assert live == decide_again(record(samples[:count]))
    assert live.reason == decide_again(record(samples)).reason


def test_nothing_that_was_computed_before_is_read() -> None:
    run = record(drawn(9, WIN))
    looks = tuple(looks_of(run))
    wrong = looks[0].model_copy(update={"effects": ()})
    assert decide_again(run.model_copy(update={"looks": (wrong,)})) == decide_again(run)


def test_noise_that_forbids_a_verdict_is_inconclusive_with_what_would_settle_it() -> None:
    decision = decide_again(record(drawn(40, {C1: 0.01}, sd=0.05)))
    assert decision.outcome.value == "inconclusive"
    assert decision.pairs_needed is not None
    assert decision.minutes_needed is not None
    assert decision.smallest_visible is not None
    assert decision.undecided


def test_a_budget_that_ends_the_run_early_says_so() -> None:
    decision = decide_again(record(drawn(4, {})))
    assert decision.reason == "budget-spent"
    assert decision.pairs_needed == 2
    later = decide_again(record(drawn(11, {}, sd=0.05)))
    assert later.reason == "budget-spent"
    assert later.smallest_visible is not None


def test_an_interrupted_run_is_invalid_until_it_is_resumed() -> None:
    run = record(drawn(4, {}), status="interrupted")
    assert decide_again(run).reason == "interrupted"
    assert decide_again(record(drawn(9, WIN), status="interrupted")).reason == "failing-axis-win"


def test_a_lost_pair_costs_its_place_and_is_named() -> None:
    lost = (LostPair(pair=2, arm="cand", cause="foreign process"),)
    run = record(drawn(10, WIN), lost=lost)
    look = look_at(run, 0)
    assert look is not None
    assert (look.pairs, look.lost) == (6, lost)
    assert any("foreign process" in note for note in decide_again(run).notes)


def test_a_pair_lost_after_a_look_does_not_count_at_it() -> None:
    lost = (LostPair(pair=7, arm="cand", cause="foreign process"),)
    look = look_at(record(drawn(10, WIN), lost=lost), 0)
    assert look is not None
    assert look.lost == ()


def test_faults_and_failures_decide_before_any_sample() -> None:
    fault = record(drawn(9, WIN), faults=(("throttled", "the wait for a cool device ran out"),))
    assert decide_again(fault).reason == "throttled"
    failure = ArmFailure(arm="cand", kind="crashed", stage="measure", message="illegal address")
    assert decide_again(record(drawn(3, WIN), failures=(failure,))).reason == "candidate-crashed"


def test_a_spoilt_sample_ends_the_run_at_the_look_that_uses_it() -> None:
    def spoilt(**changes):
        samples = list(drawn(9, WIN))
        place = next(i for i, s in enumerate(samples) if (s.pair, s.arm) == (1, "cand"))
        samples[place] = samples[place].model_copy(update=changes)
        return decide_again(record(tuple(samples)))

    assert spoilt(inputs_digest="other").reason == "inputs-differ"
    shorter = spoilt(outputs_count=230)
    assert (shorter.reason, "shorter" in shorter.detail) == ("inputs-differ", True)
    assert spoilt(compilations=2).reason == "recompiled"


def test_a_figure_that_no_implementation_can_reach_is_invalid() -> None:
    samples = drawn(9, WIN)
    fastest = max(s.values[C1] for s in samples)
    bound = {C1: fastest * 0.999}
    assert decide_again(record(samples, impossible=bound)).reason == "impossible-figure"
    assert decide_again(record(samples, impossible={C1: fastest})).reason == "failing-axis-win"
    quick = min(s.values[GUARD] for s in samples)
    assert decide_again(record(samples, impossible={GUARD: quick * 1.1})).axes == (GUARD,)


def test_an_oracle_that_ran_in_another_mode_is_invalid() -> None:
    samples = tuple(
        s.model_copy(update={"telemetry": {"oracle_mode": "eager"}}) if s.arm == "oracle" else s
        for s in drawn(9, WIN)
    )
    assert decide_again(record(samples, oracle_mode="compiled")).reason == "oracle-mode"
    assert decide_again(record(samples, oracle_mode="eager")).reason == "failing-axis-win"


def test_an_oracle_that_worked_on_other_inputs_is_invalid() -> None:
    samples = tuple(
        s.model_copy(update={"inputs_digest": "x"}) if s.arm == "oracle" else s
        for s in drawn(9, WIN)
    )
    assert decide_again(record(samples)).reason == "inputs-differ"
    assert decide_again(record(samples, targets=())).reason == "failing-axis-win"


def test_a_ceiling_holds_the_candidate_against_the_capacity() -> None:
    guards = (Guard(GUARD, ceiling=0.75),)
    spec = {"policy": policy(guards=guards)}
    samples = drawn(40, WIN, sd=0.002)

    def with_capacity(capacity: float | None):
        capacities = {GUARD: capacity} if capacity else {}
        return decide_again(record(samples, capacities=capacities, spec=spec))

    assert with_capacity(9.0 / 0.5).reason == "failing-axis-win"
    above = with_capacity(9.0 / 0.9)
    assert (above.reason, above.axes) == ("regression", (GUARD,))
    assert "ceiling 75" in above.detail
    unknown = with_capacity(None)
    assert unknown.reason == "too-little-recorded"
    assert "capacity" in unknown.detail


def test_an_axis_that_a_sample_lacks_is_too_little_recorded() -> None:
    samples = tuple(
        s.model_copy(update={"values": {C1: s.values[C1], GUARD: s.values[GUARD]}})
        if (s.pair, s.arm) == (3, "cand")
        else s
        for s in drawn(40, {C1: 0.05})
    )
    decision = decide_again(record(samples))
    assert decision.reason == "too-little-recorded"
    assert decision.axes == (C2,)


def test_an_anytime_run_is_decided_by_its_wider_intervals() -> None:
    run = record(drawn(40, WIN), spec={"sequential": "anytime", "looks": (6, 12, 20, 30, 40, 60)})
    look = look_at(run, 1)
    assert look is not None
    assert {effect.kind for effect in look.effects} == {"sequence"}
    assert decide_again(run).reason == "failing-axis-win"


def test_the_seconds_of_a_pair_take_in_its_share_of_the_oracle() -> None:
    run = record(drawn(8, {}))
    look = look_at(run, 0)
    assert evidence_of(run, look).seconds_per_pair == pytest.approx((16 + 4) * 2.5 / 8)
    assert evidence_of(record(()), None).seconds_per_pair is None


def test_inert_axes_take_no_part() -> None:
    run = record(drawn(40, {C1: 0.05, C2: -0.05}), witnesses=witnesses((C1,), equal=(C2,)))
    assert decide_again(run).reason == "failing-axis-win"
    assert decide_again(run).axes == (C1,)


def test_a_guard_that_names_an_inert_primary_still_holds() -> None:
    spec = {"policy": policy(guards=(Guard(C2),))}
    inert = witnesses((C1,), equal=(C2,))
    run = record(drawn(40, {C1: 0.05, C2: -0.05}), witnesses=inert, spec=spec)
    assert decide_again(run).axes == (C2,)


def test_samples_of_a_lost_oracle_do_not_make_a_state() -> None:
    lost = tuple(LostPair(pair=4 * b, arm="oracle", cause="foreign process") for b in range(10))
    decision = decide_again(record(drawn(40, WIN), lost=lost))
    assert decision.reason == "oracle-missing"


def test_a_sample_value_of_nan_never_ships() -> None:
    samples = (*drawn(5, WIN), sample(5, "ref", {C1: 1.0}), sample(5, "cand", {C1: math.nan}))
    assert decide_record(record(samples)) is None
