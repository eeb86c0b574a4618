"""A campaign's row as the texts of every report."""

from __future__ import annotations

from dataclasses import dataclass

from experiments import formats
from experiments.campaign.records import AxisReached, CampaignRow, LeverStanding, Residual
from experiments.stack.view import NOTHING, Table

LABELS = {"met": "MET", "TERMINAL": "TERMINAL", "open": "OPEN"}
TONES = {"met": "good", "TERMINAL": "closed", "open": "open"}


@dataclass(frozen=True, slots=True)
class RowView:
    """A row in words.

    Attributes:
        label, tone, title: the state, how it is coloured, and what the row is about.
        because: what the state rests on.
        marks: closed, recorded, re-opened: what stands beside the state.
        next: what to do next; empty where nothing is left.
        facts: names and texts of where and how.
    """

    label: str
    tone: str
    title: str
    because: str
    marks: tuple[str, ...]
    tables: tuple[Table, ...]
    next: str
    doubts: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    reference: str


def view(row: CampaignRow) -> RowView:
    """The texts of a row."""
    tables = [_axes(row), _levers(row)]
    tables += [_residual(row.residual)] if row.residual is not None else []
    tables += [_paths(row)] if row.paths else []
    where = " on ".join(filter(None, (row.workload, row.device_kind)))
    return RowView(
        label=LABELS[row.state],
        tone=TONES[row.state],
        title=f"campaign {row.name}: {where}",
        because=row.why,
        marks=tuple(_marks(row)),
        tables=tuple(tables),
        next=_next(row),
        doubts=row.doubts if row.state != "open" else (),
        facts=_facts(row),
        reference=f"row {row.row_id}",
    )


def headline(row: CampaignRow) -> str:
    """The row on one line."""
    return f"{LABELS[row.state]} {row.name}: {row.why}"


def _marks(row: CampaignRow) -> list[str]:
    found = []
    if row.recorded:
        found.append("RECORDED: figures that others published, decided again; nothing was measured")
    if row.closed_at:
        found.append(f"CLOSED by {row.closed_by} on {formats.day(row.closed_at)}")
    found += [f"RE-OPENED: {text}" for text in row.reopened]
    return found


def _next(row: CampaignRow) -> str:
    if row.next is None:
        return ""
    took = ""
    if row.next.estimate_s is not None:
        took = f" (at most about {formats.duration(row.next.estimate_s)} of the device)"
    return f"{row.next.what}{took}: {row.next.command}"


def _facts(row: CampaignRow) -> tuple[tuple[str, str], ...]:
    named = sorted(row.parameters)
    facts = [
        ("drawn", formats.day(row.created_at)),
        ("oracle", row.oracle),
        ("tokens on", row.tokens_on),
        ("binding run", row.binding or row.unbound),
        ("stack", " ".join(f"{name} {row.versions[name]}" for name in sorted(row.versions))),
        ("parameters", ", ".join(f"{name}={row.parameters[name]}" for name in named)),
        ("file", row.file),
        ("confidence", row.confidence if row.state != "open" else "an open row claims nothing"),
    ]
    return tuple((name, text) for name, text in facts if text)


# --- the tables ---------------------------------------------------------------------------------


def _axes(row: CampaignRow) -> Table:
    rows = tuple((one.axis, one.state, _ratio(one), one.target, _source(one)) for one in row.axes)
    notes: tuple[str, ...] = (
        "ratio: what ships over the target with its 95 % interval, > 1 is better",
    )
    if row.recorded:
        notes = ("ratio: as published, a single value without an interval",)
    return Table("Targets", ("axis", "state", "ratio", "target", "from"), rows, notes)


def _ratio(one: AxisReached) -> str:
    if one.ratio is None:
        return NOTHING
    if one.lower == one.upper:
        return f"{one.ratio:.3f}"
    return formats.ratio(one.ratio, one.lower, one.upper)


def _source(one: AxisReached) -> str:
    if one.missing:
        return one.missing
    return f"{one.source}, {one.blocks} blocks" if one.blocks else one.source


def _levers(row: CampaignRow) -> Table:
    rows = tuple(_lever(one) for one in row.levers)
    columns = ("lever", "verdict", "reason", "default state", "acceptance", "credit", "run")
    note = (
        "default state: what ships here; acceptance: whether every guarded axis held in the "
        "lever's own comparison; credit: what the binding run says that it brings to the whole"
    )
    return Table("Levers", columns, rows, (note, *filter(None, map(_said, row.levers))))


def _name(one: LeverStanding) -> str:
    return f"{one.lever}={one.setting}" if one.setting else one.lever


def _lever(one: LeverStanding) -> tuple[str, ...]:
    """The words alone; what they rest on stands in the notes, where there is room for it."""
    if one.outcome is None:
        return (_name(one), one.state, NOTHING, one.default_state or "off", *[NOTHING] * 3)
    return (
        _name(one),
        str(one.outcome),
        one.reason or NOTHING,
        one.default_state,
        one.accepted,
        one.credited,
        one.run_id or NOTHING,
    )


def _said(one: LeverStanding) -> str:
    """What the words of a lever rest on."""
    parts = [one.why if one.outcome is None else ""]
    parts += [f"acceptance: {one.acceptance}"] if one.acceptance else []
    parts += [f"credit: {one.credit}"] if one.credit else []
    parts += [one.why] if one.outcome is not None and one.why else []
    said = "; ".join(filter(None, parts))
    return f"{_name(one)}: {said}" if said else ""


def _residual(residual: Residual) -> Table:
    columns = ("group", "ms", "share", "launches", "of its roofline")
    rows = tuple(
        (
            one.group,
            f"{one.ms:.3f}",
            formats.share(one.share),
            f"{one.launches:g}" if one.launches else NOTHING,
            f"{formats.share(one.reached)} ({one.of})" if one.reached is not None else one.note,
        )
        for one in residual.groups
    )
    notes = []
    if residual.groups:
        said = f"shares of {residual.step_ms:.3f} ms ({residual.unit}), profile of "
        notes.append(f"{said}{residual.source}")
    notes += [residual.said] if residual.said else []
    notes += [f"{name}: {value:.2f}" for name, value in sorted(residual.floors.items())]
    return Table("Residual", columns, rows, tuple(notes))


def _paths(row: CampaignRow) -> Table:
    rows = tuple((one.name, one.state, one.reason) for one in row.paths)
    return Table("Paths not exhausted", ("path", "state", "reason"), rows)
