"""What the registry holds of each lever of a campaign, in its scope and with the present stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments import formats
from experiments.campaign import selections, tokens
from experiments.campaign.place import Place
from experiments.campaign.records import Accepted, LeverStanding
from experiments.campaign.spec import PlannedLever
from experiments.decide import guards as decide_guards
from experiments.defaults import Current, DefaultState
from experiments.evidence import Scope
from experiments.home import Home
from experiments.prepare import unmet_by
from experiments.records import Outcome
from experiments.registry.store import Registry
from experiments.replay import evidence_of, looks_of
from experiments.run_record import RunRecord
from experiments.spec import LeverSetting
from levers.base import Lever
from levers.policy import ParityClass

OF_FAILING_AXES = ("failing-axis-win", "no-failing-axis-win")
"""Reasons of verdicts that rest on which axes miss their targets."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where verdicts are found, and what they must match."""

    registry: Registry
    home: Home
    current: Current


def standings(place: Place, stored: Stored) -> tuple[LeverStanding, ...]:
    """All levers of the campaign, in the order of its file."""
    pairs = zip(place.campaign.levers, place.levers, strict=True)
    return tuple(_standing(place, stored, planned, lever) for planned, lever in pairs)


def _standing(place: Place, stored: Stored, planned: PlannedLever, lever: Lever) -> LeverStanding:
    if not place.parameters:
        return _without(planned, "open", place.absent)
    able, reasons = able_of(place, planned, lever)
    if not able:
        return _without(planned, "unavailable", "; ".join(reasons))
    known = [_state(place, stored, lever.name, setting) for setting in able]
    rests = (test(place, stored, one) for one in known for test in (of_another_oracle, untold))
    elsewhere = tuple(filter(None, rests))
    states = [] if elsewhere else known
    state = _deciding(states) or selections.winner(place, stored.home, lever, able, states)
    if state is not None:
        return _decided(planned, state, stored)
    if (found := selections.closed(place, stored.home, lever, able)) is not None:
        return LeverStanding(
            lever=lever.name,
            candidates=planned.candidates,
            state="decided",
            why=f"no setting was left in selection {found.family_id}",
            outcome=Outcome(found.outcome),
            reason=found.settings[0].decision.reason,
            run_id=found.family_id,
            decided_at=found.created_at,
            default_state="off",
            credited="not on",
        )
    return _without(planned, "open", "; ".join(elsewhere) or _why_open(stored, states))


def of_another_oracle(place: Place, stored: Stored, state: DefaultState) -> str:
    """Why a verdict about failing axes says nothing of this row; empty where it does.

    Which axes fail depends on what they are held against; a regression, say, does not.
    """
    if not is_valid(state) or state.reason not in OF_FAILING_AXES:
        return ""
    campaign, held = place.campaign, stored.registry.load(state.run_id).spec.oracle or "no oracle"
    same = held in (campaign.oracle, campaign.lever_oracle)
    if same or held.startswith(f"{campaign.oracle}:"):
        return ""
    said = f"{state.scope.setting}: {state.outcome} ({state.reason}) in run {state.run_id}"
    return f"{said} was held against {held} and not {campaign.oracle}"


def untold(place: Place, stored: Stored, state: DefaultState) -> str:
    """Why a lever may not ship here yet: a model of the campaign never decoded with it.

    What stays off stays off whatever its tokens are. Empty where nothing is missing.
    """
    if not is_valid(state) or state.outcome is not Outcome.DEFAULT_ON or not place.tokens_on:
        return ""
    one = LeverSetting(lever=state.scope.lever, setting=state.scope.setting)
    missing = tokens.lacking(place, stored.registry.load(state.run_id).spec, (one,))
    if not missing:
        return ""
    named = ", ".join(missing)
    return f"{one.setting}: the tokens of run {state.run_id} were not compared on {named}"


def able_of(
    place: Place, planned: PlannedLever, lever: Lever
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The candidates that can run here, in canonical form, and why the others cannot."""
    able, reasons = [], []
    for typed in planned.candidates:
        setting = lever.settings.check(lever.name, typed)
        found = unmet_by(lever, place.facts, setting)
        able += [] if found else [setting]
        reasons += [text for text in found if text not in reasons]
    return tuple(able), tuple(reasons)


def _state(place: Place, stored: Stored, lever: str, setting: str) -> DefaultState:
    return stored.registry.default_state(place.scope(lever, setting), stored.current)


def _deciding(states: Sequence[DefaultState]) -> DefaultState | None:
    """The verdict that decides a lever: one that is ON, or the last where all have one."""
    if not states:
        return None
    valid = [one for one in states if is_valid(one)]
    on = [one for one in valid if one.outcome is Outcome.DEFAULT_ON]
    if on:
        return max(on, key=lambda one: one.decided_at)
    return max(valid, key=lambda one: one.decided_at) if len(valid) == len(states) else None


def is_valid(state: DefaultState) -> bool:
    """Whether a scope holds a verdict that was not invalidated and is of the present stack."""
    return state.outcome is not None and "stale" not in state.flags


def _decided(planned: PlannedLever, state: DefaultState, stored: Stored) -> LeverStanding:
    record = stored.registry.load(state.run_id)
    accepted, acceptance = acceptance_of(record)
    return LeverStanding(
        lever=state.scope.lever,
        candidates=planned.candidates,
        state="decided",
        why="; ".join(state.notes),
        setting=state.scope.setting,
        outcome=state.outcome,
        reason=state.reason,
        run_id=state.run_id,
        decided_at=state.decided_at,
        default_state=state.label,
        accepted=accepted,
        acceptance=acceptance,
        credited="not measured" if state.state == "on" else "not on",
    )


def _without(planned: PlannedLever, state: str, why: str) -> LeverStanding:
    return LeverStanding.model_validate(
        {
            "lever": planned.lever,
            "candidates": planned.candidates,
            "state": state,
            "why": why or "never measured here",
            "default_state": "off",
            "credited": "not on",
        }
    )


def _why_open(stored: Stored, states: Sequence[DefaultState]) -> str:
    """What is known of a lever without a valid verdict."""
    said = []
    for state in states:
        setting = state.scope.setting
        notes = [note for note in state.notes if note.startswith("measured on another stack")]
        if notes:
            said.append(f"{setting} is stale: {notes[0]}")
        elif "invalidated" in state.flags and state.outcome is None:
            said.append(f"{setting}: its verdict was invalidated")
        elif (last := last_run(stored, state.scope)) is not None:
            said.append(f"{setting}: {without_verdict(last)}")
        elif state.outcome is None:
            said.append(f"{setting} was never measured here")
    return "; ".join(said)


def last_run(stored: Stored, scope: Scope) -> RunRecord | None:
    """The last decided run of a scope, whether or not it holds a verdict."""
    for row in stored.registry.history(scope.lever):
        if (row.cand, row.ref, row.workload) != (scope.setting, scope.ref, scope.workload):
            continue
        if row.status == "decided" and row.device_kind == scope.device_kind:
            record = stored.registry.load(row.run_id)
            if record.kind == "ab" and Scope.of(record).key == scope.key:
                return record
    return None


def without_verdict(record: RunRecord) -> str:
    """How a run without a verdict ended, and what would settle it."""
    decision = record.decision
    assert decision is not None, "a decided run has a decision"
    text = f"{decision.outcome} ({decision.reason}) in run {record.run_id}"
    if decision.minutes_needed is not None and decision.pairs_needed is not None:
        minutes = formats.duration(60 * decision.minutes_needed)
        pairs = formats.count(decision.pairs_needed, "more pair")
        text += f", {pairs} ({minutes}) would settle it"
    return text


def acceptance_of(record: RunRecord) -> tuple[Accepted, str]:
    """Whether every guarded axis of a lever's own comparison held, and which did not."""
    if record.parity is not None and record.parity.parity_class is ParityClass.BROKEN:
        return "not held", "parity failed, so no speed was measured"
    look = next(reversed(tuple(looks_of(record))), None)
    if look is None:
        return "not known", "it was not timed"
    checks = decide_guards.guard_checks(evidence_of(record, look))
    worse = decide_guards.proven_worse(checks)
    if worse:
        return "not held", "; ".join(one.describe() for one in worse)
    open_ = [one.axis for one in checks if not one.inside]
    if open_:
        return "undecided", f"not proven inside the margin: {', '.join(open_)}"
    return "held", f"all {len(checks)} guarded axes"
