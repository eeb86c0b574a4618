"""Lists in the terminal: the levers of the catalog, the runs of a lever."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import formats
from experiments.requests import HistoryRow, LeverRow

OUTCOME_STYLES = {
    "default-ON": "green",
    "gated-OFF": "red",
    "terminal": "blue",
    "inconclusive": "yellow",
    "invalid": "magenta",
}
"""Colour of each outcome."""


def print_levers(console: Console, rows: Sequence[LeverRow]) -> None:
    """Print the catalog; broken plugins with why they did not import."""
    table = _table("lever", "settings", "workloads", "default state", "what it changes")
    for row in rows:
        if row.broken:
            continue
        states = "\n".join(f"{scope}: {state}" for scope, state in row.states) or "off (no verdict)"
        cells = (row.name, row.settings, ", ".join(row.workloads), states, row.summary)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for row in rows:
        if row.broken:
            console.print(Text(f"BROKEN {row.name}", style="bold red"))
            console.print(Text(row.broken, style="dim"))


def print_history(console: Console, rows: Sequence[HistoryRow]) -> None:
    """Print runs, one a line, each with what stands beside its verdict."""
    if not rows:
        console.print("no run is stored; start one with: levergate ab LEVER")
        return
    table = _table("run", "what", "where", "verdict", "effect % [interval]", "pairs", "marks")
    for row in rows:
        what = f"{row.lever} {row.ref} -> {row.cand}"
        verdict = Text(row.outcome or row.status, style=OUTCOME_STYLES.get(row.outcome, ""))
        if row.reason:
            verdict.append(f"\n{row.reason}", style="dim")
        table.add_row(
            Text(f"{row.run_id}\n{formats.day(row.created_at)}"),
            Text(what),
            Text(f"{row.workload}, {row.device_kind}"),
            verdict,
            Text(_effect(row)),
            Text(str(row.pairs) if row.pairs else "-"),
            Text(_marks(row), style="yellow"),
        )
    console.print(table)


def _effect(row: HistoryRow) -> str:
    if row.effect is None or row.lower is None or row.upper is None:
        return "-"
    shown = formats.effect(row.effect, row.lower, row.upper).replace(" %", "")
    return f"{row.axis}\n{shown}"


def _marks(row: HistoryRow) -> str:
    standing = row.standing
    marks = [
        name for name in ("invalidated", "override", "stale", "unbound") if getattr(standing, name)
    ]
    if row.outcome == "default-ON":
        marks.append("confirmed" if standing.confirmed else "unconfirmed")
    return "\n".join(marks)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
