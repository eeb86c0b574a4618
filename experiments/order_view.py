"""A selection or a screen as the texts of every report; both say that they are no verdict."""

from __future__ import annotations

from dataclasses import dataclass

from experiments import formats
from experiments.family.records import FamilyRecord, SettingResult
from experiments.reasons import FAMILY_LABEL, SCREEN_LABEL
from experiments.records import Effect
from experiments.screen_records import RoughEffect, ScreenRecord, ScreenRow

NOTHING = "-"

MOST_DETAIL = 160
"""Characters of a reason that a table's cell shows; the record has it whole."""


@dataclass(frozen=True, slots=True)
class OrderView:
    """A table of settings, the best first.

    Attributes:
        label: that this is no verdict.
        title: lever, reference, workload and device.
        columns, rows: texts of the table.
        lines: what a reader must know.
        reference: where the record is found.
    """

    label: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...]
    reference: str


def of_family(family: FamilyRecord) -> OrderView:
    """A selection among several settings."""
    title = f"{family.lever} against {family.ref}, {family.workload} on {family.device}"
    lines = [
        f"ended after {formats.count(family.rounds, 'round')}: {family.stopped}",
        "the chance to drop one that is worth shipping is at most 5 % over all settings and looks",
        _verdict_line(family),
    ]
    return OrderView(
        label=FAMILY_LABEL,
        title=title,
        columns=("setting", "selection", "reading", "parity", "mean", "best axis", "worst axis"),
        rows=tuple(_family_row(one, family.primaries) for one in family.ranked),
        lines=tuple(lines),
        reference=f"selection {family.family_id}",
    )


def _verdict_line(family: FamilyRecord) -> str:
    if family.winner is None:
        return "no setting is left, so none was measured again and there is no verdict"
    if not family.winner_run:
        return f"{family.winner} is to be measured again on fresh pairs"
    return f"the verdict on {family.winner} rests on fresh pairs alone: run {family.winner_run}"


def _family_row(one: SettingResult, primaries: tuple[str, ...]) -> tuple[str, ...]:
    found = sorted(
        (effect for effect in one.effects if effect.axis in primaries),
        key=lambda effect: effect.estimate,
    )
    reading = f"{one.decision.outcome}: {one.decision.reason}"
    return (
        one.setting,
        one.fate,
        reading if one.fate in ("dropped", "not-timed") else f"({reading})",
        one.parity or NOTHING,
        NOTHING if one.score is None else f"{formats.percent(one.score)} %",
        _effect_text(found[-1]) if found else NOTHING,
        _effect_text(found[0]) if len(found) > 1 else NOTHING,
    )


def _effect_text(effect: Effect) -> str:
    return f"{effect.axis} {formats.effect(effect.estimate, effect.lower, effect.upper)}"


def of_screen(screen: ScreenRecord) -> OrderView:
    """A screen inside one process."""
    return OrderView(
        label=SCREEN_LABEL,
        title=f"{screen.lever} against {screen.ref}, {screen.workload} on {screen.device_kind}",
        columns=("setting", "mean", "range (middle axis)", "best axis", "worst axis", "notes"),
        rows=tuple(_screen_row(row, screen.primaries) for row in screen.rows),
        lines=_screen_lines(screen),
        reference=f"screen {screen.screen_id}",
    )


def _screen_lines(screen: ScreenRecord) -> tuple[str, ...]:
    lines = [
        f"{formats.count(screen.rounds, 'round')} inside one process, {screen.total_s:.0f} s; "
        "parity was not checked and no interval can be given",
        "for a verdict, measure the settings with ab and without --screen",
    ]
    if screen.beside:
        lines.insert(0, f"on in both arms: {', '.join(map(str, screen.beside))}")
    if screen.left_changed:
        lines.insert(0, f"SUSPECT: a setting left changed {', '.join(screen.left_changed)}")
    return (*([f"NO ORDER: {screen.failure}"] if screen.failure else []), *lines)


def _screen_row(row: ScreenRow, primaries: tuple[str, ...]) -> tuple[str, ...]:
    found = sorted((one for one in row.effects if one.axis in primaries), key=lambda one: one.mean)
    middle = found[len(found) // 2] if found else None
    return (
        row.setting,
        NOTHING if row.score is None else f"about {formats.percent(row.score)} %",
        NOTHING if middle is None else _range(middle),
        f"{found[-1].axis} {formats.percent(found[-1].mean)} %" if found else NOTHING,
        f"{found[0].axis} {formats.percent(found[0].mean)} %" if len(found) > 1 else NOTHING,
        _screen_notes(row),
    )


def _range(one: RoughEffect) -> str:
    return f"{formats.percent(one.lowest)} to {formats.percent(one.highest)} %"


def _screen_notes(row: ScreenRow) -> str:
    notes = [row.failure[:MOST_DETAIL]] if row.failure else []
    if row.same_plan:
        notes.append("ran the reference's plan")
    if row.compilations:
        notes.append(f"{formats.count(row.compilations, 'compilation')} in timed work")
    return "; ".join(notes)
