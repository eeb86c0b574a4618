"""The figures of a run: the effect of each pair with its interval, and all axes side by side.

matplotlib is imported when a figure is drawn, and without pyplot: there is no global figure and no
window. Only what the record holds is drawn: intervals stand at the looks where they were computed.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import plot_curves, stats
from experiments.parity_records import ParityReport
from experiments.records import Effect, Look
from experiments.run_record import RunRecord
from experiments.tracking.payload import percent
from levers.policy import Axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_AXES = 6
"""Figures per axis: the deciding ones first; more would hide them."""

DOTS_PER_INCH = 130

INK, REF, GOOD, BAD, FAINT = "#1f2933", "#52606d", "#1a7f4b", "#b42318", "#cbd2d9"


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure: the same drawing as SVG (for the report) and PNG (for MLflow)."""

    name: str
    caption: str
    svg: str
    png: bytes


def plots(record: RunRecord) -> tuple[Plot, ...]:
    """The figures of a run; those of speed only where a look was taken: else none may be shown."""
    drawn = []
    if record.looks:
        drawn = [_forest(record, record.looks[-1])]
        drawn += [one for axis in _shown_axes(record) if (one := _pairs(record, axis)) is not None]
    return (*drawn, *curves_of([] if record.parity is None else [record.parity]))


def curves_of(reports: Iterable[ParityReport]) -> Iterator[Plot]:
    """Of each check with curves: both arms, and their difference beside the reference's own."""
    for check in (check for report in reports for check in report.checks):
        found = plot_curves.curves_of(check)
        if found is not None:
            with drawing(*plot_curves.SIZE_IN) as (figure, save):
                plot_curves.draw(figure, found)
                yield Plot(f"curves_{check.name}", found.caption, *save())


def files(drawn: Sequence[Plot]) -> dict[str, bytes]:
    """The figures as artifacts: PNG files by path."""
    return {f"plots/{plot.name}.png": plot.png for plot in drawn}


def _shown_axes(record: RunRecord) -> list[Axis]:
    """The deciding axes, then the primaries that have an effect."""
    decision = record.decision
    primaries = [axis.name for axis in record.axes if record.spec.policy.is_primary(axis.name)]
    names = dict.fromkeys([*(decision.axes if decision else ()), *primaries])
    known = {axis.name for axis in record.axes}
    return [record.axis(name) for name in names if name in known][:MOST_AXES]


def _pairs(record: RunRecord, axis: Axis) -> Plot | None:
    """Each pair's effect, the running mean, and the interval at each look."""
    pairs = stats.paired(record.samples, record.lost)
    ratios = stats.log_ratios(axis, pairs)
    if ratios is None or not len(ratios):
        return None
    caption = f"{axis.name}: effect of each pair, running mean, interval at each look"
    with drawing(7.0, 2.8) as (figure, save):
        area = figure.add_axes((0.09, 0.17, 0.89, 0.73))
        numbers = np.arange(1, len(ratios) + 1)
        means = np.cumsum(ratios) / numbers
        area.axhline(0, color=INK, linewidth=0.8)
        area.plot(numbers, [percent(r) for r in ratios], "o", color=FAINT, markersize=4)
        area.plot(numbers, [percent(m) for m in means], color=REF, linewidth=1.2)
        for look in record.looks:
            _bar_at(area, look, axis.name)
        area.set_xlabel("valid pairs")
        area.set_ylabel("effect, % (> 0 is better)")
        area.set_title(axis.name, loc="left", fontsize=9, color=INK)
        return Plot(f"pairs_{axis.name.replace('/', '_')}", caption, *save())


def _bar_at(area: Any, look: Look, axis: str) -> None:
    for one in look.effects:
        if one.axis == axis:
            ends = [_bounded(one.lower), _bounded(one.upper)]
            area.plot([look.pairs] * 2, ends, color=_colour(one), linewidth=2.4)
            area.plot([look.pairs], [percent(one.estimate)], "D", color=_colour(one), markersize=5)


def _forest(record: RunRecord, look: Look) -> Plot:
    """All axes at the last look: estimate and interval; margins of the guards as ticks."""
    effects = [one for one in look.effects if np.isfinite(one.estimate)]
    states = {state.axis: state.state for state in look.states}
    with drawing(7.0, 0.9 + 0.32 * max(1, len(effects))) as (figure, save):
        low = 0.5 / figure.get_figheight()
        area = figure.add_axes((0.32, low, 0.66, 0.96 - low))
        area.axvline(0, color=INK, linewidth=0.8)
        for row, one in enumerate(effects):
            ends = [_bounded(one.lower), _bounded(one.upper)]
            area.plot(ends, [row, row], color=_colour(one), linewidth=2.4)
            area.plot([percent(one.estimate)], [row], "D", color=_colour(one), markersize=5)
            guard = record.spec.policy.guard_for(one.axis)
            if guard is not None and guard.ceiling is None:
                area.plot([percent(-guard.margin)], [row], "|", color=BAD, markersize=10)
        labels = [f"{e.axis} ({states[e.axis]})" if e.axis in states else e.axis for e in effects]
        area.set_yticks(range(len(effects)), labels, fontsize=8)
        area.invert_yaxis()
        area.set_xlabel("effect, % (> 0 is better); red tick: margin of the guard")
        caption = f"all axes after {look.pairs} pairs"
        return Plot("axes", caption, *save())


def _bounded(log_ratio: float) -> float:
    """An end of an interval in percent; an open end is drawn at the edge of what is sensible."""
    return percent(min(max(log_ratio, -1.0), 1.0))


def _colour(effect: Effect) -> str:
    if effect.lower > 0:
        return GOOD
    return BAD if effect.upper < 0 else REF


@contextlib.contextmanager
def drawing(width_in: float, height_in: float) -> Iterator[tuple[Figure, Any]]:
    """A figure, and what turns it into SVG and PNG: the same bytes for the same data."""
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.hashsalt": "levergate",
        "svg.fonttype": "none",
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width_in, height_in))
        yield figure, lambda: (_svg(figure), _png(figure))


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _png(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return data.getvalue()
