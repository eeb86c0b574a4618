"""A replayed corpus in the terminal: the confusion table, what is clear-cut, what is opposite."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import formats
from experiments.policy_replay.agreement import CAUSES, COLUMNS, ReplayReport, ReplayRow

LABELS = {"too-little-recorded": "too little\nrecorded", "inconclusive": "incon-\nclusive"}
"""Columns whose name is too long for a head."""

RELATIONS = {
    "same": "as recorded",
    "same-state": "off as recorded",
    "opposite": "OPPOSITE",
    "open": "open",
}


def print_replay(console: Console, report: ReplayReport, *, details: bool = False) -> None:
    """Print the table and the summary; ``details`` adds every record with its reason."""
    if details:
        console.print(_records(report))
    console.print(_confusion(report))
    for line in summary(report):
        console.print(Text(line))


def summary(report: ReplayReport) -> Iterator[str]:
    """How far the corpus and the policy agree, in sentences."""
    yield (
        f"policy {report.policy}; an axis without a recorded state counts as "
        f"{report.unknown_state}; a single value is decided as a point, without an interval"
    )
    agreed = sum(row.clear_agrees for row in report.clear)
    share = report.clear_share
    clear = "none" if share is None else f"{agreed} of {len(report.clear)} ({formats.share(share)})"
    yield f"clear-cut records decided as recorded: {clear}"
    for row in report.clear:
        if not row.clear_agrees:
            yield f"  {row.id}: recorded {row.recorded}, decided {row.column}: {row.why}"
    opposite = f"{len(report.opposite)} of {len(report.rows)}"
    yield f"opposite verdicts: {opposite} ({formats.share(report.opposite_share)})"
    for cause, ids in report.causes.items():
        yield f"  {cause} ({len(ids)}): {CAUSES[cause]}: {', '.join(ids)}"
    if report.left_out:
        named = ", ".join(f"{one} ({verdict})" for one, verdict in report.left_out)
        yield f"left out, no verdict on the lever: {named}"


def _confusion(report: ReplayReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(Text("recorded \\ decided"), no_wrap=True)
    for column in COLUMNS:
        table.add_column(Text(LABELS.get(column, column)), justify="right")
    table.add_column(Text("all"), justify="right")
    for recorded, counts in report.table.items():
        cells = [str(counts[column] or "-") for column in COLUMNS]
        table.add_row(Text(recorded), *cells, str(sum(counts.values())))
    return table


def _records(report: ReplayReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(Text("record"), no_wrap=True)
    for name in ("recorded", "decided", "why"):
        table.add_column(Text(name), overflow="fold")
    for row in report.rows:
        style = "yellow" if row.relation == "opposite" else ""
        table.add_row(*(Text(cell) for cell in _cells(row)), style=style)
    return table


def _cells(row: ReplayRow) -> tuple[str, str, str, str]:
    clear = "\nclear-cut" if row.clear else ""
    decided = row.column if row.column == row.reason else f"{row.column}\n{row.reason}"
    relation = f"{RELATIONS[row.relation]}{f' ({row.cause})' if row.cause else ''}"
    return row.id, f"{row.recorded}{clear}", decided, f"{relation}: {row.why}"
