"""A selection or a screen in the terminal and as Markdown."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import render
from experiments.order_view import OrderView


def print_order(console: Console, view: OrderView) -> None:
    """Print the table under its label."""
    console.print(Text.assemble((f" {view.label} ", "bold reverse yellow"), " ", (view.title, "")))
    table = Table(box=box.SIMPLE_HEAD)
    for name in view.columns:
        table.add_column(Text(name), overflow="fold", no_wrap=name == view.columns[0])
    for row in view.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    for line in view.lines:
        console.print(Text(line))
    console.print(Text(view.reference, style="dim"))


def markdown(view: OrderView) -> str:
    """The same as Markdown."""
    return render.filled("family.md.j2", v=view)
