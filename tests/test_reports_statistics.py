"""Public fault reports about what counts as a difference, what is said of it, and exit codes."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from support import planned_pipeline

import cli
import experiments
from experiments import render
from experiments.decide.order import decide
from experiments.exit_codes import Exit, exit_code
from experiments.metrics import tail
from experiments.prepare import looks_up_to
from experiments.records import Decision, Outcome
from experiments.replay import decide_again
from experiments.steadiness import slow_starts
from experiments.view.verdict import view
from levers.errors import UsageError
from tests.support.evidence_factory import C1, C2, GUARD, effect, evidence, sample, state
from tests.support.run_factory import drawn, record

FINE = (0, -0.5, 0.5)


# https://github.com/lance0/rustbgpd/pull/566
def test_a_mean_whose_interval_spans_zero_is_inconclusive_and_not_a_regression() -> None:
    for middle in (3.3, -3.3):
        found = effect(C1, (middle, middle - 6.3, middle + 6.3))
        decision = decide(evidence([found, effect(GUARD, FINE)], [state(C1, "failing")]))
        assert decision is not None
        assert decision.outcome is Outcome.INCONCLUSIVE
        assert exit_code(decision.outcome, detailed=True) is Exit.INCONCLUSIVE


# https://github.com/edtechre/pybroker/pull/291
def test_equal_arms_of_16_microseconds_with_30_percent_jitter_get_no_verdict_either_way() -> None:
    outcomes: Counter[Outcome] = Counter()
    for seed in range(12):
        samples = drawn(40, {}, sd=0.3, ratio=1.0, seed=seed, scale=16e-6)
        outcomes[decide_again(record(samples)).outcome] += 1
    assert set(outcomes) == {Outcome.INCONCLUSIVE}


# https://github.com/warpfront/hipfire/issues/137
def test_one_pair_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(UsageError, match="1 pairs cannot give a verdict") as refused:
        looks_up_to(1)
    assert refused.value.cure == "use --pairs 6 or more"


# https://github.com/rust-lang/rustc-perf/issues/968
def test_a_small_clear_effect_is_shown_as_clear_and_as_within_the_threshold() -> None:
    samples = drawn(40, {C1: 0.003, C2: 0.003}, sd=0.0008)
    run = record(samples)
    decision = decide_again(run)
    assert (decision.outcome, decision.reason) == (Outcome.TERMINAL, "not-worth-keeping")
    shown = with_looks(run, decision)
    row = next(line for line in shown.splitlines() if C1 in line and "better" in line)
    assert "+0.28 % | [0.26, 0.30]" in row
    assert "within ±1 %" in row
    assert "practical threshold" in shown
    assert "A clear sign says nothing about the size" in shown


def with_looks(run, decision: Decision) -> str:
    from experiments.replay import look_at

    looks = tuple(taken for i in range(6) if (taken := look_at(run, i)) is not None)
    done = run.model_copy(update={"status": "decided", "decision": decision, "looks": looks})
    return render.markdown(view(done))


# https://github.com/alibaba/rtp-llm/pull/1231
def test_of_15_values_the_tail_is_their_maximum_and_is_called_so() -> None:
    values = [float(i) for i in range(15)]
    assert tail(values, 99) == ("max", 14.0)
    assert tail(values, 95) == ("max", 14.0)
    assert tail([*values] * 7, 99)[0] == "p99"


# https://github.com/ggml-org/llama.cpp/pull/8187
def test_two_slow_values_at_the_beginning_of_a_process_are_said_with_their_arm() -> None:
    slow, steady = (5.0, 5.1, *[1.0] * 18), (1.0,) * 20
    samples = [
        sample(pair, arm, {C1: 100.0}, raw={"step_s": times})
        for pair in range(6)
        for arm, times in (("ref", steady), ("cand", slow))
    ]
    assert slow_starts(samples) == (
        "cand: step_s began with 2 slow values in 6 of 6 processes; "
        "a longer warm-up would leave them out",
    )


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def install(name: str) -> None:
        pipeline = planned_pipeline.PlannedPipeline(name)
        monkeypatch.setitem(sys.modules, "experiments.pipeline", pipeline)
        monkeypatch.setattr(experiments, "pipeline", pipeline, raising=False)

    return install


# https://github.com/bheisler/criterion.rs/issues/824
# https://github.com/local-inference-lab/b12x/pull/78
def test_a_gate_is_red_for_a_regression_and_for_a_wrong_result(planned) -> None:
    for name in ("regression", "parity_failed"):
        planned(name)
        assert cli.main(["ab", "fa2_nsplits_cap", "--expect", "default-ON"]) == Exit.UNEXPECTED
        assert cli.main(["ab", "fa2_nsplits_cap", "--detailed-exitcode"]) == Exit.GATED_OFF


# https://github.com/bheisler/criterion.rs/issues/824
def test_no_two_endings_that_a_script_must_tell_apart_share_an_exit_code() -> None:
    assert len({int(code) for code in Exit}) == len(Exit)
    codes = {exit_code(str(outcome), detailed=True) for outcome in Outcome}
    assert len(codes) == len(Outcome)
