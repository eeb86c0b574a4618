from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from experiments import extension
from experiments.environment import cpu_device
from experiments.plan import make_plan, remaining
from experiments.prepare import compare
from experiments.records import Decision, Outcome
from experiments.replay import decide_again, looks_of
from experiments.requests import AbRequest
from experiments.run_record import RunRecord
from experiments.spec import LeverSetting
from experiments.spool import Spool
from levers.errors import LeverConflict, UnknownName, UsageError
from tests.support import runs
from tests.support.evidence_factory import C1, GUARD
from tests.support.run_factory import drawn, record

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
UNDECIDED = Decision(outcome=Outcome.INCONCLUSIVE, reason="win-undecided")
LOOKS = (6, 9)


def first(runs_folder: Path, decision: Decision | None = UNDECIDED, **changes: Any) -> RunRecord:
    """A run of nine pairs on disk; its noise leaves an effect of 1.5 % open."""
    spec = {"looks": LOOKS, "sequential": "anytime", **changes}
    samples = drawn(13, {C1: 0.015, GUARD: 0.0}, sd=0.01)
    whole = record(tuple(s for s in samples if s.pair < 9), spec=spec)
    head = whole.model_copy(update={"samples": (), "witnesses": (), "parity": None})
    with Spool.create(runs_folder, head) as spool:
        for witness in whole.witnesses:
            spool.witness(witness)
        assert whole.parity is not None
        spool.parity(whole.parity)
        for sample in whole.samples:
            spool.sample(sample)
        for look in looks_of(whole):
            spool.look(look)
        if decision is not None:
            decided = {**dict(spool.record()), "status": "decided", "decision": decision}
            spool.finish(RunRecord(**decided))
    return whole


def asked(run: RunRecord, pairs: int | None, **changes: Any) -> AbRequest:
    return AbRequest(lever=run.spec.lever, resume=run.run_id, max_pairs=pairs, **changes)


@pytest.mark.parametrize("decision", [UNDECIDED, None], ids=["inconclusive", "interrupted"])
def test_an_anytime_run_goes_on_as_a_run_of_its_own(
    tmp_path: Path, decision: Decision | None
) -> None:
    run = first(tmp_path, decision)
    request = asked(run, 25)
    assert extension.wanted(request, tmp_path)
    new_id = extension.extend(request, tmp_path, NOW)
    assert new_id != run.run_id
    spool, loaded = Spool.resume(tmp_path, new_id)
    with spool:
        again = loaded.record
        assert again.spec.looks == (6, 9, 13, 18, 25)
        assert again.samples == run.samples
        assert again.parity == run.parity
        assert again.warnings == (
            f"extends run {run.run_id} beyond its 9 pairs; the intervals hold at any time",
        )
        assert again.plan_digest != run.plan_digest
        plan = make_plan(again.spec.seed, 25, oracle=True)
        left = remaining(plan, again.samples, again.lost)
        assert [step.pair for step in left if step.kind == "pair"] == list(range(9, 25))


def test_the_looks_before_the_extension_say_what_they_said(tmp_path: Path) -> None:
    run = first(tmp_path)
    new_id = extension.extend(asked(run, 13), tmp_path, NOW)
    spool, _ = Spool.resume(tmp_path, new_id)
    with spool:
        later = [s for s in drawn(13, {C1: 0.015, GUARD: 0.0}, sd=0.01) if s.pair >= 9]
        for sample in later:
            spool.sample(sample)
        whole = spool.record()
    looks = tuple(looks_of(whole))
    assert [look.pairs for look in looks] == [6, 9, 13]
    for before, after in zip(looks_of(run), looks, strict=False):
        assert after.effects == before.effects
    assert all(effect.kind == "sequence" for effect in looks[-1].effects)
    assert decide_again(whole.model_copy(update={"looks": looks})).outcome in Outcome


def test_the_first_run_stays_as_it_was(tmp_path: Path) -> None:
    run = first(tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / run.run_id).iterdir()}
    extension.extend(asked(run, 25), tmp_path, NOW)
    assert {path: path.read_bytes() for path in (tmp_path / run.run_id).iterdir()} == files


def test_a_budget_is_for_what_is_still_to_be_measured(tmp_path: Path) -> None:
    run = first(tmp_path, budget_s=10.0)
    spent = sum(sample.wall_s for sample in run.samples)
    for budget, expected in ((None, None), (60.0, spent + 60.0)):
        now = NOW.replace(minute=1 if budget else 2)
        new_id = extension.extend(asked(run, 25, budget_s=budget), tmp_path, now)
        spool, loaded = Spool.resume(tmp_path, new_id)
        with spool:
            assert loaded.record.spec.budget_s == expected


def test_planned_looks_cannot_be_extended(tmp_path: Path) -> None:
    run = first(tmp_path, sequential="group-sequential")
    with pytest.raises(UsageError, match=r"false verdicts.*--sequential anytime"):
        extension.wanted(asked(run, 25), tmp_path)
    assert not extension.wanted(asked(run, 9), tmp_path)
    assert not extension.wanted(asked(run, None), tmp_path)


@pytest.mark.parametrize(
    "decision",
    [
        Decision(outcome=Outcome.DEFAULT_ON, reason="failing-axis-win"),
        Decision(outcome=Outcome.TERMINAL, reason="not-worth-keeping"),
        Decision(outcome=Outcome.INVALID, reason="device-busy"),
    ],
    ids=lambda decision: str(decision.outcome),
)
def test_what_has_a_verdict_or_is_invalid_is_not_extended(
    tmp_path: Path, decision: Decision
) -> None:
    run = first(tmp_path, decision)
    with pytest.raises(UsageError, match=f"ended as {decision.outcome}"):
        extension.wanted(asked(run, 25), tmp_path)


def test_a_shorter_plan_or_an_unknown_run_is_refused(tmp_path: Path) -> None:
    run = first(tmp_path)
    with pytest.raises(UsageError, match="planned for 9 pairs"):
        extension.wanted(asked(run, 6), tmp_path)
    with pytest.raises(UnknownName):
        extension.wanted(AbRequest(lever="x", resume="nothing", max_pairs=50), tmp_path)
    assert not extension.wanted(AbRequest(lever="x", max_pairs=50), tmp_path)


def test_the_method_is_chosen_before_the_run_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.use_stub(monkeypatch)
    request = AbRequest(lever="planted_fast", cand="on", seed=1, sequential="anytime")
    spec = compare(request, cpu_device()).spec
    planned = compare(AbRequest(lever="planted_fast", cand="on", seed=1), cpu_device()).spec
    assert (spec.sequential, planned.sequential) == ("anytime", "group-sequential")
    assert spec.content_digest() != planned.content_digest()


def test_a_lever_that_ships_on_at_the_same_site_is_named_with_both_cures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs.use_stub(monkeypatch)
    request = AbRequest(lever="planted_fast", cand="on", seed=1)
    with pytest.raises(LeverConflict) as refused:
        compare(request, cpu_device(), (LeverSetting(lever="planted_slow", setting="on"),))
    assert "planted_slow=on ships ON here" in refused.value.message
    assert "composes_with" in refused.value.cure
    assert "levergate override planted_slow --state off" in refused.value.cure
