"""A campaign's row, and the list of campaigns, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from experiments import formats
from experiments.campaign.records import CampaignRow
from experiments.campaign.view import view
from experiments.render_terminal import STYLES
from experiments.stack.render import print_table
from experiments.stack.view import NOTHING, Table

if TYPE_CHECKING:
    from experiments.campaign.pipeline import CampaignLine


def print_row(console: Console, row: CampaignRow) -> None:
    """Print a row: what it rests on first, its state last, where it stays in sight."""
    shown = view(row)
    for table in shown.tables:
        if table.rows:
            print_table(console, table)
            continue
        for note in (table.title, *table.notes):
            console.print(Text(note, style="dim"))
    for name, text in shown.facts:
        console.print(Text(f"{name}: {text}", style="dim"))
    for doubt in shown.doubts:
        console.print(Text(f"- doubt: {doubt}"))
    for mark in shown.marks:
        console.print(Text(f"! {mark}", style="bold yellow"))
    style = STYLES[shown.tone]
    console.print(Text.assemble((f" {shown.label} ", f"bold reverse {style}"), " ", shown.title))
    console.print(Text(shown.because, style="bold"))
    if shown.next:
        console.print(Text.assemble(("Next: ", "bold"), shown.next))


def print_list(console: Console, lines: Sequence[CampaignLine]) -> None:
    """Print the known campaigns."""
    rows = tuple(
        (
            one.name,
            f"{one.state}, closed" if one.closed_at else one.state,
            one.problem
            or f"{one.summary} ({one.scope}; {formats.count(len(one.levers), 'lever')})",
            formats.day(one.drawn_at) if one.drawn_at else NOTHING,
        )
        for one in lines
    )
    print_table(console, Table("Campaigns", ("campaign", "state", "what", "drawn"), rows))
