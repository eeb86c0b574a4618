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
    table = _table("lever", "settings", "workloads", "what it changes")
    for row in rows:
        if not row.broken:
            cells = (row.name, row.settings, ", ".join(row.workloads), row.summary)
            table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    _print_states(console, rows)
    for row in rows:
        if row.broken:
            console.print(Text(f"BROKEN {row.name}", style="bold red"))
            console.print(Text(row.broken, style="dim"))


def _print_states(console: Console, rows: Sequence[LeverRow]) -> None:
    states = [state for row in rows for state in row.states]
    if not states:
        console.print("no default state yet: every lever is off until a verdict says otherwise")
        return
    table = _table("default state", "in this scope", whole=False)
    for scope, state in states:
        table.add_row(Text(state), Text(scope))
    console.print(table)
    for note in (note for row in rows for note in row.notes):
        console.print(Text(f"! {note}", style="yellow"))


def print_history(console: Console, rows: Sequence[HistoryRow]) -> None:
    """Print runs, each with what stands beside its verdict."""
    if not rows:
        console.print("no run is stored; start one with: levergate ab LEVER")
        return
    table = _table("run", "comparison", "verdict", "deciding axis\neffect % [interval]")
    for row in rows:
        compared = f"{row.lever} {row.ref} -> {row.cand}\n{row.workload}, {row.device_kind}"
        compared += f"\nbeside {', '.join(row.beside)}" if row.beside else ""
        verdict = Text(row.outcome or row.status, style=OUTCOME_STYLES.get(row.outcome, ""))
        if row.reason:
            verdict.append(f"\n{row.reason}", style="dim")
        if row.parity:
            verdict.append(f"\nparity passed ({row.parity}), not timed", style="dim")
        if marks := _marks(row):
            verdict.append("".join(f"\n{mark}" for mark in marks), style="yellow")
        name = f"{row.run_id}\n{formats.day(row.created_at)}"
        table.add_row(Text(name), Text(compared), verdict, Text(_effect(row)))
    console.print(table)


def _effect(row: HistoryRow) -> str:
    if row.effect is None or row.lower is None or row.upper is None:
        return "-"
    shown = formats.effect(row.effect, row.lower, row.upper).replace(" %", "")
    return f"{row.axis}\n{shown}, {formats.count(row.pairs, 'pair')}"


def _marks(row: HistoryRow) -> list[str]:
    standing = row.standing
    words = (("invalidated", standing.invalidated), ("override", standing.override))
    marks = [f"{name}: {said}" for name, said in words if said]
    marks += [name for name in ("stale", "unbound") if getattr(standing, name)]
    if row.outcome == "default-ON":
        marks.append("confirmed" if standing.confirmed else "unconfirmed")
    return marks


def _table(*columns: str, whole: bool = True) -> Table:
    """A table; ``whole``: its first column is never broken, since it is what a reader copies."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(Text(name), overflow="fold", no_wrap=whole and name == columns[0])
    return table
