"""From a binding run and a profile to axes, credit and residual; from a selection to a verdict."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from experiments.campaign import credit, residual, selections, standings, store
from experiments.campaign.draw import challenged
from experiments.campaign.spec import Goal
from experiments.campaign.tracking import payload
from experiments.profiling_records import GROUPS
from experiments.records import Outcome
from experiments.registry.store import Registry
from experiments.stack.records import StackRecord
from experiments.stack.stats import analysed
from levers.errors import StoreError
from tests.experiments.stack.test_stack_oracle import GAINS, ORACLE, binding, with_oracle
from tests.support import records_factory, stack_factory
from tests.support.campaign_factory import C1, C8, axis, lever, row
from tests.support.campaign_machine import PROFILE
from tests.support.stack_factory import RATE, STEP

GOALS = (Goal(axis=RATE.name), Goal(axis=STEP.name, at_least=1.1))


def bound(**changes: object) -> StackRecord:
    record = with_oracle(stack_factory.record(binding(), GAINS, **changes))  # type: ignore[arg-type]
    return record.model_copy(update={"status": "measured", "analysis": analysed(record)})


def test_each_axis_is_the_whole_over_its_target_in_the_same_blocks() -> None:
    rate, step = credit.axes_of(bound(), GOALS)
    assert rate.ratio == pytest.approx(math.exp(0.35 - ORACLE), abs=0.02)
    assert rate.state == "met"
    assert rate.target == ">= 1.00 x plain"
    assert step.ratio == pytest.approx(math.exp(0.35 - ORACLE) / 1.1, abs=0.02)
    assert step.state == "missed"
    assert rate.blocks == 6


def test_an_absolute_target_of_a_time_is_reached_from_below() -> None:
    whole_ms = 1000.0 / math.exp(0.35)
    goals = (Goal(axis=STEP.name, value=whole_ms * 1.05), Goal(axis=STEP.name, value=whole_ms / 2))
    above, below = credit.axes_of(bound(), goals)
    assert above.ratio == pytest.approx(1.05, abs=0.01)
    assert (above.state, below.state) == ("met", "missed")
    assert above.target.startswith("<= ")


def test_an_axis_that_the_oracle_does_not_report_is_unmeasured_and_says_why() -> None:
    (found,) = credit.axes_of(bound(failed=(5,)), GOALS[:1])
    assert found.state == "unmeasured"
    assert "out-of-memory" in found.missing


def test_a_lever_has_the_credit_of_the_whole_against_the_whole_without_it() -> None:
    levers = [lever(name, Outcome.DEFAULT_ON, credited="not measured") for name in "abc"]
    off = lever("d", Outcome.GATED_OFF)
    found = credit.credited([*levers, off], bound(), GOALS)
    assert [one.credited for one in found] == ["gain", "gain", "gain", "not on"]
    assert f"{RATE.name} +2" in found[0].credit
    assert not any(one.contradicted for one in found)


def test_a_lever_that_slows_the_whole_is_challenged_and_one_decided_since_is_not() -> None:
    slowing = stack_factory.adding(a=0.2, b=0.1, c=-0.05)
    record = with_oracle(stack_factory.record(binding(), slowing))
    record = record.model_copy(update={"status": "measured", "analysis": analysed(record)})
    on = Outcome.DEFAULT_ON
    found = credit.credited([lever(name, on) for name in "abc"], record, GOALS)
    assert [one.contradicted for one in found] == [False, False, True]
    assert found[2].credited == "loss"
    opened, newer = challenged(found, record.created_at)
    assert ([one.state for one in opened], newer) == (["decided", "decided", "open"], ())
    later = found[2].model_copy(update={"decided_at": "2027-01-01"})
    opened, newer = challenged([*found[:2], later], record.created_at)
    assert ([one.state for one in opened], newer) == (["decided"] * 3, ("c",))


def test_a_lever_that_did_not_move_the_whole_has_no_credit() -> None:
    neutral = stack_factory.adding(a=0.2, b=0.1, c=0.0)
    record = with_oracle(stack_factory.record(binding(), neutral))
    record = record.model_copy(update={"status": "measured", "analysis": analysed(record)})
    found = credit.credited([lever("c", Outcome.DEFAULT_ON)], record, GOALS)
    assert (found[0].credited, found[0].contradicted) == ("none", False)
    assert "told from zero" in found[0].credit


def test_every_group_of_a_profile_belongs_to_a_group_of_a_row() -> None:
    assert set(residual.NAMED) == set(GROUPS)
    assert set(residual.NAMED.values()) == set(residual.ORDER)


def test_a_residual_takes_the_nearer_roofline_and_says_where_there_is_none() -> None:
    moved = {"gemm": 2e9, "attention": 1e9}
    groups = tuple(
        one.model_copy(update={"bytes": moved.get(one.group), "flop": None})
        for one in PROFILE.groups
    )
    found = residual.residual_of(PROFILE.model_copy(update={"groups": groups}), "stack s")
    by_name = {one.group: one for one in found.groups}
    assert (by_name["gemm"].reached, by_name["gemm"].of) == (pytest.approx(0.5), "copy")
    assert by_name["attention"].reached == pytest.approx(0.25)
    assert by_name["glue"].ms == pytest.approx(4.0)
    assert by_name["host gap"].note.startswith("its floor is nothing")
    assert by_name["other"].note == residual.UNKNOWN
    assert all(one.reached is not None or one.note for one in found.groups)
    assert found.unit == "step"


# --- runs and selections --------------------------------------------------------------------------


def test_acceptance_says_whether_every_guarded_axis_held() -> None:
    assert standings.acceptance_of(records_factory.parity_failed())[0] == "not held"
    assert standings.acceptance_of(records_factory.out_of_memory()) == (
        "not known",
        "it was not timed",
    )


def test_a_run_without_a_verdict_says_what_would_settle_it() -> None:
    said = standings.without_verdict(records_factory.inconclusive())
    assert said.startswith("inconclusive (guard-undecided) in run ")
    assert said.endswith("61 more pairs (9 min 30 s) would settle it")


def test_only_a_selection_that_closed_every_setting_closes_a_lever() -> None:
    assert {Outcome(one) for one in selections.CLOSING} == {Outcome.GATED_OFF, Outcome.TERMINAL}


# --- the registry and MLflow ----------------------------------------------------------------------


def test_rows_are_stored_newest_first_and_a_row_is_replaced_by_its_closed_self(
    tmp_path: Path,
) -> None:
    first = row("open", [axis(C1, None, None, None)], [lever("a", None)])
    last = row(
        "TERMINAL",
        [axis(C8, 0.9, 0.89, 0.91)],
        [lever("a", Outcome.GATED_OFF)],
        row_id="20261130T000000-abcdef",
        created_at="2026-11-30T00:00:00+00:00",
    )
    with Registry.open(tmp_path / "registry.db") as registry:
        assert store.latest(registry.store, "row-x") is None
        store.save(registry.store, first)
        store.save(registry.store, last)
        done = last.model_copy(update={"closed_by": "ada", "closed_at": "2026-11-30"})
        store.save(registry.store, done)
        assert store.latest(registry.store, "row-x") == done
        assert store.rows(registry.store, "row-x") == (done, first)
        assert store.rows(registry.store, "other") == ()


def test_a_stored_row_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    newer = row("open", [axis(C1, None, None, None)], [lever("a", None)], schema_version=99)
    with Registry.open(tmp_path / "registry.db") as registry:
        store.save(registry.store, newer)
        with pytest.raises(StoreError, match="schema version 99"):
            store.latest(registry.store, "row-x")


def test_the_mirror_holds_ratios_shares_and_the_state() -> None:
    found = row("TERMINAL", [axis(C8, 0.9, 0.89, 0.91)], [lever("a", Outcome.GATED_OFF)])
    found = found.model_copy(update={"residual": residual.residual_of(PROFILE, "stack s")})
    held = payload(found, "text")
    assert held.experiment == "campaign/row-x"
    assert held.parent.tags["levergate.state"] == "TERMINAL"
    metrics = {point.key: point.value for point in held.parent.metrics}
    assert metrics["ratio/decode/tok_s/c8"] == 0.9
    assert metrics["residual_share/gemm"] == pytest.approx(1 / len(GROUPS))
    assert held == payload(found, "text")
    assert datetime.fromisoformat(found.created_at).tzinfo is UTC
