"""Stacks and profiles in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from experiments.profiling_records import Profile
from experiments.roofline import view as roofline_view
from experiments.stack import reports as stack_reports
from experiments.stack.records import StackRecord
from experiments.stack.view import Table, view

UNBROKEN = 24
"""Longest text of a first column that is kept on one line; the name of a whole stack is longer."""

LEAST = 10
"""Characters that a column keeps where its longest word has as many: a name of an axis."""

PADDING = (0, 1, 0, 0)
"""Blanks above, right of, below and left of a cell; a waterfall has ten columns."""


def print_stack(console: Console, record: StackRecord) -> None:
    """Print the tables under the label that says what they are."""
    shown = view(record)
    console.print(Text.assemble((f" {shown.label} ", "bold reverse yellow"), " ", shown.title))
    if shown.refusal:
        console.print(Text(shown.refusal, style="bold red"))
    for warning in shown.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    for table in stack_reports.tables(record, shown):
        print_table(console, table)
    for name, text in shown.facts:
        console.print(Text(f"{name}: {text}", style="dim"))
    console.print(Text(shown.reference, style="dim"))


def print_profile(console: Console, run_id: str, profile: Profile) -> None:
    """Print the groups and the longest kernels of a profile."""
    on = " + ".join(profile.levers) or "no lever"
    console.print(Text(f"{run_id}: {on}, on {profile.device_kind}", style="bold"))
    print_table(console, roofline_view.groups(profile))
    print_table(console, roofline_view.kernels(profile))
    waits = roofline_view.gaps(profile)
    if waits is not None:
        print_table(console, waits)


def print_table(console: Console, table: Table) -> None:
    """Print one table with its notes; where there is room for it, no short word is broken."""
    drawn = Drawn(box=box.SIMPLE_HEAD, title=table.title, title_justify="left", padding=PADDING)
    columns = [[name, *cells] for name, *cells in zip(table.columns, *table.rows, strict=True)]
    least = [min(LEAST, max(map(len, " ".join(cells).split()))) for cells in columns]
    fits = sum(least) + (sum(PADDING) + 1) * len(least) < console.width
    for place, cells in enumerate(columns):
        whole = place == 0 and max(map(len, cells)) <= UNBROKEN
        width = least[place] if fits else None
        drawn.add_column(Text(cells[0]), overflow="fold", no_wrap=whole, min_width=width)
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    console.print(drawn)
    for note in table.notes:
        console.print(Text(note, style="dim"))
