"""The waterfall of a stack as a figure: the value of each row, and what each lever brings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from experiments import formats
from experiments.plots import BAD, FAINT, GOOD, INK, REF, Plot, curves_of, drawing
from experiments.stack.records import Contrast, StackRecord


def plots(record: StackRecord) -> tuple[Plot, ...]:
    """The figures of a stack: of speed where that may be shown, and the whole's training curves."""
    speed = (_rows(record), _gains(record)) if record.analysis.gains else ()
    return (*speed, *_curves(record))


def _curves(record: StackRecord) -> Iterator[Plot]:
    """The curves that the parity of the whole compared, where the workload trains."""
    whole = record.evidence[record.spec.whole : record.spec.whole + 1]
    return curves_of(one.parity for one in whole if one.parity is not None)


def _rows(record: StackRecord) -> Plot:
    """The judged axis of each row as a bar, the own gain written on it."""
    spec, axis = record.spec, record.axis(record.spec.axis)
    values = [one.get(axis.name, math.nan) for one in record.analysis.values[: spec.whole + 1]]
    labels = ["no lever", *(f"+ {one}" for one in spec.levers)]
    with drawing(7.0, 0.9 + 0.34 * len(values)) as (figure, save):
        bottom = 0.5 / figure.get_figheight()
        area = figure.add_axes((0.34, bottom, 0.62, 0.96 - bottom))
        before = math.nan
        for row, value in enumerate(values):
            if not math.isfinite(value):
                continue
            low, high = sorted((value, before)) if math.isfinite(before) else (value, value)
            area.barh(row, low, color=FAINT, height=0.62)
            area.barh(row, high - low, left=low, color=_step_colour(record, row), height=0.62)
            area.text(high, row, f" {_said(record, row, value)}", va="center", fontsize=7)
            before = value
        area.set_yticks(range(len(values)), labels, fontsize=8)
        area.invert_yaxis()
        area.set_xlim(0, 1.35 * max((v for v in values if math.isfinite(v)), default=1.0))
        area.set_xlabel(f"{axis.name}, {axis.unit}")
        return Plot("waterfall", f"waterfall of {spec.workload}: {axis.name} of each row", *save())


def _step_colour(record: StackRecord, row: int) -> str:
    effect = record.analysis.gains[row - 1].effect(record.spec.axis) if row else None
    if effect is None or effect.lower <= 0 <= effect.upper:
        return REF
    return GOOD if effect.estimate > 0 else BAD


def _said(record: StackRecord, row: int, value: float) -> str:
    text = formats.quantity(value, "")
    effect = record.analysis.gains[row - 1].effect(record.spec.axis) if row else None
    return text if effect is None else f"{text}  ({math.exp(effect.estimate):.3f}x)"


def _gains(record: StackRecord) -> Plot:
    """Own gain and leave-one-out gain of each lever with their intervals, as factors."""
    spec, analysis = record.spec, record.analysis
    with drawing(7.0, 1.0 + 0.4 * spec.whole) as (figure, save):
        low = 0.5 / figure.get_figheight()
        area = figure.add_axes((0.34, low, 0.62, 0.90 - low))
        area.axvline(1.0, color=INK, linewidth=0.8)
        for row, one in enumerate(analysis.gains):
            _bar(area, one, spec.axis, row - 0.12, GOOD)
        for row, one in enumerate(analysis.left_out):
            _bar(area, one, spec.axis, row + 0.18, REF)
        area.set_yticks(range(spec.whole), [str(one) for one in spec.levers], fontsize=8)
        area.set_ylim(spec.whole - 0.5, -0.5)
        area.set_xlabel("factor with its 95 % interval; green: own gain, grey: whole without it")
        return Plot("gains", f"what each lever brings on {spec.axis}", *save())


def _bar(area: Any, one: Contrast, axis: str, height: float, colour: str) -> None:
    effect = one.effect(axis)
    if effect is None:
        return
    ends = [math.exp(max(-2.0, effect.lower)), math.exp(min(2.0, effect.upper))]
    area.plot(ends, [height, height], color=colour, linewidth=2.2)
    area.plot([math.exp(effect.estimate)], [height], "D", color=colour, markersize=5)
