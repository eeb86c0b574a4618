"""Stacks and profiles in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from experiments import roofline_view
from experiments.profiling_records import Profile
from experiments.stack_records import StackRecord
from experiments.stack_view import Table, view

UNBROKEN = 24
"""Longest text of a first column that is kept on one line; the name of a whole stack is longer."""

LEAST = 12
"""Characters that a column keeps where its longest word has as many."""


def print_stack(console: Console, record: StackRecord) -> None:
    """Print the tables under the label that says what they are."""
    shown = view(record)
    console.print(Text.assemble((f" {shown.label} ", "bold reverse yellow"), " ", shown.title))
    if shown.refusal:
        console.print(Text(shown.refusal, style="bold red"))
    for warning in shown.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    for table in shown.tables:
        print_table(console, table)
    if record.profile is not None:
        print_table(console, roofline_view.groups(record.profile))
    for name, text in shown.facts:
        console.print(Text(f"{name}: {text}", style="dim"))
    console.print(Text(shown.reference, style="dim"))


def print_profile(console: Console, run_id: str, profile: Profile) -> None:
    """Print the groups and the longest kernels of a profile."""
    on = " + ".join(profile.levers) or "no lever"
    console.print(Text(f"{run_id}: {on}, on {profile.device_kind}", style="bold"))
    print_table(console, roofline_view.groups(profile))
    print_table(console, roofline_view.kernels(profile))


def print_table(console: Console, table: Table) -> None:
    """Print one table with its notes; no column gets so narrow that its words are broken."""
    drawn = Drawn(box=box.SIMPLE_HEAD, title=table.title, title_justify="left")
    for place, name in enumerate(table.columns):
        cells = [name, *(row[place] for row in table.rows)]
        words = max(len(word) for cell in cells for word in cell.split() or [""])
        whole = place == 0 and max(map(len, cells)) <= UNBROKEN
        least = min(words, LEAST)
        drawn.add_column(Text(name), overflow="fold", no_wrap=whole, min_width=least)
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    console.print(drawn)
    for note in table.notes:
        console.print(Text(note, style="dim"))
