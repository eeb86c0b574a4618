"""All that is written of a stack: Markdown, page and figures."""

from __future__ import annotations

from experiments import plots, render
from experiments.plots import Plot
from experiments.roofline import view as roofline_view
from experiments.stack import floor_view as stack_floor_view
from experiments.stack import oracle_view as stack_oracle_view
from experiments.stack import plots as stack_plots
from experiments.stack.records import StackRecord
from experiments.stack.view import StackView, Table, view
from experiments.tracking.artifacts import Files


def markdown(record: StackRecord) -> str:
    """The tables as Markdown."""
    shown = view(record)
    return render.filled("stack.md.j2", v=shown, tables=tables(record, shown))


def page(record: StackRecord) -> str:
    """The self-contained page with its figures."""
    return _page(record, stack_plots.plots(record))


def files(record: StackRecord) -> Files:
    """The artifacts by path: page, Markdown and figures."""
    drawn = stack_plots.plots(record)
    found: dict[str, bytes | str] = dict(plots.files(drawn))
    return {**found, "report.html": _page(record, drawn), "stack.md": markdown(record)}


def _page(record: StackRecord, drawn: tuple[Plot, ...]) -> str:
    shown = view(record)
    figures = [(one.caption, one.svg) for one in drawn]
    return render.filled_html("stack.html.j2", figures, v=shown, tables=tables(record, shown))


def tables(record: StackRecord, shown: StackView) -> tuple[Table, ...]:
    """All tables of a stack, its profile last where there is one."""
    profile = () if record.profile is None else (roofline_view.groups(record.profile),)
    beside = stack_floor_view.tables(record)
    return (*stack_oracle_view.tables(record), *shown.tables, *beside, *profile)
