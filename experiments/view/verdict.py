"""A run as the texts that every report shows: all words and numbers ready, nothing left to compute.

The terminal, the pull-request Markdown, the HTML page and the MLflow description are drawn from one
:class:`VerdictView`, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments import formats
from experiments.reasons import ACTIONS, CHECKED_LABEL, FAMILY_LABEL, SCREEN_LABEL, describe
from experiments.records import Effect, Outcome
from experiments.requests import Standing
from experiments.run_record import RunRecord
from experiments.view.axes import AxisRow, StateRow, axis_rows, state_rows
from experiments.view.facts import Fact, beside_facts, provenance_facts, reproduce_command
from experiments.view.parity import (
    CheckRow,
    FailureRow,
    PlanRow,
    check_rows,
    failure_rows,
    lost_rows,
    parity_line,
    plan_rows,
)

TONES = {
    "default-ON": "good",
    "gated-OFF": "bad",
    "terminal": "closed",
    "inconclusive": "open",
    "invalid": "void",
}
"""How an outcome is coloured."""

NO_SPEED_PARITY = "Parity failed, so no speed is shown."
NO_SPEED = "No speed was measured: the run ended before the first look."
NOT_TIMED = "No speed was measured: the run stopped before its first sample."

MOST_DECIDING = 3
"""Deciding axes that a headline names; the table has them all."""


@dataclass(frozen=True, slots=True)
class VerdictView:
    """Everything that a report may show of one run.

    Attributes:
        label: the outcome as shown first (``default-ON``, ``SCREEN ...``, ``running``).
        action: what it means for the one who asked.
        because: the reason code with the deciding axes and their effects.
        text, cure: the reason in words and the next step.
        facts: what is printed beside every verdict.
        marks: unconfirmed, stale, unbound, invalidated, overridden, measured beside others.
        threshold: the smallest gain worth keeping.
        no_speed: why no axis is shown, or empty.
    """

    run_id: str
    title: str
    label: str
    tone: str
    action: str
    because: str
    text: str
    cure: str
    detail: str
    notes: tuple[str, ...]
    facts: tuple[Fact, ...]
    marks: tuple[str, ...]
    warnings: tuple[str, ...]
    axes: tuple[AxisRow, ...]
    states: tuple[StateRow, ...]
    threshold: str
    no_speed: str
    parity: str
    checks: tuple[CheckRow, ...]
    plans: tuple[PlanRow, ...]
    failures: tuple[FailureRow, ...]
    faults: tuple[tuple[str, str], ...]
    lost: tuple[str, ...]
    provenance: tuple[Fact, ...]
    reproduce: str

    @property
    def headline(self) -> str:
        """One line: outcome, lever and setting, action and reason."""
        because = f" ({self.because})" if self.because else ""
        return f"{self.label} {self.title} - {self.action}{because}"


def view(record: RunRecord, standing: Standing | None = None) -> VerdictView:
    """Turn a run, and what the registry knows of its verdict, into texts."""
    standing = standing or Standing()
    hidden = _no_speed(record)
    text, cure = _words(record)
    decision = record.decision
    return VerdictView(
        run_id=record.run_id,
        title=f"{record.spec.lever}={record.spec.cand}",
        label=_label(record),
        tone=_tone(record),
        action=_action(record, standing),
        because=_because(record, bool(hidden)),
        text=text,
        cure=cure,
        detail=_sentence(decision.detail) if decision else "",
        notes=decision.notes if decision else (),
        facts=beside_facts(record, standing, hide_speed=bool(hidden)),
        marks=_marks(record, standing),
        warnings=record.warnings,
        axes=() if hidden else axis_rows(record),
        states=() if hidden else state_rows(record),
        threshold=formats.margin(record.spec.policy.smallest_gain),
        no_speed=hidden,
        parity=parity_line(record),
        checks=check_rows(record),
        plans=plan_rows(record),
        failures=failure_rows(record),
        faults=record.faults,
        lost=lost_rows(record),
        provenance=provenance_facts(record),
        reproduce=reproduce_command(record),
    )


def _label(record: RunRecord) -> str:
    if record.kind == "screen":
        return SCREEN_LABEL
    if record.kind == "family":
        return FAMILY_LABEL
    if _stopped(record):
        return CHECKED_LABEL
    return record.decision.outcome.value if record.decision else record.status


def _stopped(record: RunRecord) -> bool:
    """Whether it passed parity and nothing goes on now."""
    if record.status != "interrupted":
        return False
    from experiments import checked

    return checked.stopped(record)


def _tone(record: RunRecord) -> str:
    if record.kind != "ab" or record.decision is None:
        return "open"
    return TONES[record.decision.outcome.value]


def _action(record: RunRecord, standing: Standing) -> str:
    if standing.invalidated:
        return "may not be relied on: its evidence is invalidated"
    if record.kind != "ab":
        return "measure it with ab before anything ships"
    if _stopped(record):
        return "nothing was timed: no verdict"
    if record.decision is None:
        return "not decided yet"
    return ACTIONS[record.decision.outcome.value]


def _because(record: RunRecord, hidden: bool) -> str:
    if record.decision is None:
        return ""
    named = [] if hidden else deciding_effects(record)
    more = len(named) - MOST_DECIDING
    shown = [*named[:MOST_DECIDING], *([f"{more} more"] if more > 0 else [])]
    return ": ".join(part for part in (record.decision.reason, ", ".join(shown)) if part)


def deciding_effects(record: RunRecord) -> list[str]:
    """The deciding axes with effect and interval, as ``decode/tok_s/c8 +12.3 % [9.8, 14.9]``."""
    if record.decision is None or not record.looks:
        return list(record.decision.axes) if record.decision else []
    effects = {effect.axis: effect for effect in record.looks[-1].effects}
    return [_named(axis, effects.get(axis)) for axis in record.decision.axes]


def _named(axis: str, effect: Effect | None) -> str:
    if effect is None:
        return axis
    return f"{axis} {formats.effect(effect.estimate, effect.lower, effect.upper)}"


def _words(record: RunRecord) -> tuple[str, str]:
    decision = record.decision
    if _stopped(record):
        from experiments import checked

        return (
            "The witness of each arm and parity passed, and nothing was timed: no verdict.",
            f"{checked.resume_command(record)} measures; nothing is checked again "
            "while code and variables stay as they are.",
        )
    if decision is None:
        done = formats.count(len(record.samples), "sample")
        return f"{done} on disk, nothing decided.", f"Go on with --resume {record.run_id}."
    reason = describe(decision.reason)
    return reason.text, reason.cure


def _sentence(text: str) -> str:
    """A detail as a sentence of its own; the names of axes keep their small letters."""
    if not text:
        return ""
    start = text if "/" in text.split()[0] else text[0].upper() + text[1:]
    return start if start.endswith((".", "!", "?")) else f"{start}."


def _no_speed(record: RunRecord) -> str:
    decision = record.decision
    if decision is not None and decision.reason == "parity-failed":
        return NO_SPEED_PARITY
    if record.looks:
        return ""
    return NOT_TIMED if _stopped(record) else NO_SPEED


def _marks(record: RunRecord, standing: Standing) -> tuple[str, ...]:
    on = record.decision is not None and record.decision.outcome is Outcome.DEFAULT_ON
    marks = []
    if standing.invalidated:
        marks.append(f"INVALIDATED: {standing.invalidated}")
    if standing.override:
        marks.append(f"OVERRIDDEN: {standing.override}")
    if standing.stale:
        marks.append(f"STALE: {standing.stale}")
    if standing.unbound:
        marks.append(f"UNBOUND: {standing.unbound}")
    if standing.confirmed:
        marks.append(f"confirmed by {standing.confirmed}")
    elif on:
        marks.append("UNCONFIRMED: until a second run on another day, boot or device agrees")
    if record.spec.stack:
        others = ", ".join(str(one) for one in record.spec.stack)
        only = "; it ships only where they are on, too" if on else ""
        marks.append(f"BESIDE {others}, on in both arms{only}")
    return tuple(marks)
