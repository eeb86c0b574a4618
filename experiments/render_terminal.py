"""A verdict in the terminal: the answer in one coloured line, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from experiments.view.verdict import VerdictView

WIDE = 106
"""Columns from which the interval is drawn too."""

MIDDLE = 88
"""Columns from which the sign has a column of its own."""

STYLES = {
    "good": "green",
    "bad": "red",
    "closed": "blue",
    "open": "yellow",
    "void": "magenta",
    "neutral": "",
    "muted": "dim",
}
"""Colour of each tone."""


def print_verdict(console: Console, view: VerdictView, *, details: bool = False) -> None:
    """Print a verdict; ``details`` adds the paths that ran and the provenance.

    The evidence comes first and the answer last, where it stays in sight above the prompt.
    """
    for part in _evidence(view, console.width, details):
        console.print(part)
    console.print(_words(view))
    console.print(_pairs([*view.facts, ("parity", view.parity), ("run", view.run_id)]))
    console.print(_panel(view))


def _panel(view: VerdictView) -> Panel:
    style = STYLES[view.tone]
    head = Text.assemble((f" {view.label} ", f"bold reverse {style}"), " ", (view.title, "bold"))
    head.append(f" - {view.action}", style=style)
    lines: list[RenderableType] = [head]
    if view.because:
        lines.append(Text(view.because, style="bold"))
    lines += [Text(mark, style="bold yellow") for mark in view.marks]
    return Panel(Group(*lines), border_style=style, box=box.HEAVY)


def _evidence(view: VerdictView, width: int, details: bool) -> Iterable[RenderableType]:
    if details:
        yield from _details(view)
    if view.checks:
        yield _checks(view)
    if view.states:
        yield _states(view, width)
    if view.axes:
        yield _axes(view, width)
    else:
        yield Text(f"{view.no_speed}\n", style="bold")


def _words(view: VerdictView) -> RenderableType:
    lines = [Text(" ".join(part for part in (view.text, view.detail) if part))]
    if view.cure:
        lines.append(Text.assemble(("Next: ", "bold"), view.cure))
    lines += [Text(f"- {note}") for note in view.notes]
    lines += [Text(f"- {reason}: {text}") for reason, text in view.faults]
    lines += [Text(f"! {warning}", style="yellow") for warning in view.warnings]
    for failure in view.failures:
        said = f"! {failure.arm} {failure.kind} in {failure.stage}: {failure.message}"
        lines.append(Text(said, style="red"))
    return Padding(Group(*lines), (0, 0, 1, 0))


def _pairs(facts: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(name, Text(text))
    return table


def _table(title: str, *columns: str, numbers: Iterable[str] = ()) -> Table:
    table = Table(title=f"\n{title}", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(
            Text(name), justify="right" if name in numbers else "left", overflow="fold"
        )
    return table


def _axes(view: VerdictView, width: int) -> Table:
    """The axes; what a narrow terminal leaves out can be read off the interval."""
    signed, drawn = width >= MIDDLE, width >= WIDE
    sign, strip = (("sign",) if signed else ()), (("worse | better",) if drawn else ())
    columns = ("axis", "effect % [interval]", *strip, *sign, f"size vs {view.threshold}", "guard")
    table = _table("Axes (+ is better)", *columns)
    for row in view.axes:
        if row.role == "reported" and not row.deciding:
            continue
        cells = [f"{'>' if row.deciding else ' '} {row.axis}"]
        cells.append(f"{row.estimate.removesuffix(' %'):>6} {row.interval}")
        cells += [row.bar.strip] if drawn else []
        cells += [row.clear] if signed else []
        cells += ["inert" if row.inert else row.matters, row.guard]
        style = STYLES[row.tone] + (" bold" if row.deciding else "")
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def _states(view: VerdictView, width: int) -> Table:
    """Targets; a narrow terminal does without how the oracle ran, unless there is none."""
    shown = 5 if width >= MIDDLE or any(row.ratio == "-" for row in view.states) else 4
    columns = ("axis", "state", "ratio", "target", "by")[:shown]
    table = _table("Reference against its targets", *columns)
    for row in view.states:
        cells = (row.axis, row.state, row.ratio, row.target, row.how)[:shown]
        table.add_row(*(Text(cell) for cell in cells), style=STYLES[row.tone])
    return table


def _checks(view: VerdictView) -> Table:
    table = _table("Parity", "check", "status", "passed", "worst", "allows", numbers=("passed",))
    for row in view.checks:
        worst = row.detail if row.worst == "-" and row.detail else row.worst
        cells = (row.name, row.status, row.count, worst, row.allows)
        table.add_row(*(Text(cell) for cell in cells), style=STYLES[row.tone])
    return table


def _details(view: VerdictView) -> Iterable[RenderableType]:
    if view.plans:
        table = _table("What ran", "axis", "reference", "candidate", "")
        for row in view.plans:
            cells = (row.axis, row.ref, row.cand, row.engaged)
            table.add_row(*(Text(cell) for cell in cells), style=STYLES[row.tone])
        yield table
    for text in view.lost:
        yield Text(f"lost {text}")
    for failure in view.failures:
        yield Text(failure.traceback, style="dim")
    yield Text("Provenance", style="bold")
    yield _pairs(view.provenance)
    yield Text(f"\n{view.reproduce}\n")
