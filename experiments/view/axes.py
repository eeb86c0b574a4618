"""The measured axes of a run as rows of text: effect, interval and threshold kept apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments import formats
from experiments.records import Arm, AxisState, Effect
from experiments.run_record import RunRecord
from levers.policy import GatingPolicy, Guard

WIDTH = 1000
"""Width of a drawn interval in units of its own; 500 is no effect."""

STRIP = 13
"""Characters of a drawn interval in a terminal; the middle one is no effect."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval as drawn: positions from 0 to :data:`WIDTH`, and the same as text.

    ``gain_low`` and ``gain_high`` are where the smallest gain worth keeping lies on either side.
    """

    lower: int
    estimate: int
    upper: int
    length: int
    gain_low: int
    gain_high: int
    gain_length: int
    strip: str


@dataclass(frozen=True, slots=True)
class AxisRow:
    """One axis: what was measured, whether the effect is clear, and whether it matters.

    Attributes:
        role: ``primary`` (also a guard), ``guard`` or ``reported``.
        clear: what the interval says about the sign; never about the size.
        matters: where the interval lies against the smallest gain worth keeping.
        guard: the margin, and whether it is proven to hold.
    """

    axis: str
    role: str
    deciding: bool
    inert: bool
    ref: str
    cand: str
    estimate: str
    interval: str
    clear: str
    matters: str
    guard: str
    noise: str
    tone: str
    bar: Bar


@dataclass(frozen=True, slots=True)
class StateRow:
    """Whether the reference reaches the target of one primary axis."""

    axis: str
    state: str
    target: str
    ratio: str
    runs: str
    how: str
    tone: str


def inert_axes(record: RunRecord) -> frozenset[str]:
    """Axes on which both arms ran the same plan: the setting changed nothing there."""
    plans = {witness.arm: witness.plans for witness in record.witnesses}
    ref, cand = plans.get("ref", {}), plans.get("cand", {})
    return frozenset(axis for axis in ref if axis in cand and ref[axis] == cand[axis])


def axis_rows(record: RunRecord) -> tuple[AxisRow, ...]:
    """The rows of the last look, deciding axes first, then primaries, guards and the rest."""
    effects = record.looks[-1].effects if record.looks else ()
    inert = inert_axes(record)
    policy = record.spec.policy
    guarded = [effect for effect in effects if policy.guard_for(effect.axis) is not None]
    span = _span(guarded, policy.smallest_gain)
    rows = [_axis_row(record, effect, effect.axis in inert, span) for effect in effects]
    order = {"primary": 0, "guard": 1, "reported": 2}
    return tuple(sorted(rows, key=lambda row: (not row.deciding, order[row.role], row.inert)))


def _axis_row(record: RunRecord, effect: Effect, inert: bool, span: float) -> AxisRow:
    policy = record.spec.policy
    guard = policy.guard_for(effect.axis)
    primary = policy.is_primary(effect.axis)
    deciding = record.decision is not None and effect.axis in record.decision.axes
    return AxisRow(
        axis=effect.axis,
        role="primary" if primary else "guard" if guard else "reported",
        deciding=deciding,
        inert=inert,
        ref=arm_value(record, effect.axis, "ref"),
        cand=arm_value(record, effect.axis, "cand"),
        estimate=f"{formats.percent(effect.estimate)} %",
        interval=formats.interval(effect.estimate, effect.lower, effect.upper),
        clear=clear_text(effect),
        matters=matters_text(effect, policy),
        guard=_guard_text(record, effect, guard),
        noise=f"{effect.sd * 100:.2g} %",
        tone=_tone(effect, guard, inert),
        bar=_bar(effect, policy.smallest_gain, span),
    )


def arm_values(record: RunRecord, axis: str, arm: Arm) -> list[float]:
    """What one arm measured in the pairs that count."""
    lost = {pair.pair for pair in record.lost}
    return [
        sample.values[axis]
        for sample in record.samples
        if sample.arm == arm and sample.pair not in lost and axis in sample.values
    ]


def arm_value(record: RunRecord, axis: str, arm: Arm) -> str:
    """The median of one arm with its unit, for display only."""
    values = arm_values(record, axis, arm)
    if not values:
        return "-"
    return formats.quantity(formats.median(values), record.axis(axis).unit)


def clear_text(effect: Effect) -> str:
    """What the interval says about the sign of an effect."""
    if effect.lower == effect.upper == 0:
        return "equal"
    if effect.lower > 0:
        return "better"
    return "worse" if effect.upper < 0 else "not clear"


def matters_text(effect: Effect, policy: GatingPolicy) -> str:
    """Where the interval lies against the smallest gain worth keeping."""
    gain, bound = policy.smallest_gain, formats.margin(policy.smallest_gain)
    if effect.lower >= gain:
        return f"gain > {bound}"
    if effect.upper <= -gain:
        return f"loss > {bound}"
    if effect.lower > -gain and effect.upper < gain:
        return f"within ±{bound}"
    return f"open at {bound}"


def _guard_text(record: RunRecord, effect: Effect, guard: Guard | None) -> str:
    if guard is None:
        return "-"
    if guard.ceiling is not None:
        capacity, values = (
            record.capacities.get(effect.axis),
            arm_values(record, effect.axis, "cand"),
        )
        used = formats.share(max(values) / capacity) if capacity and values else "not known"
        return f"{used} of capacity, ≤ {formats.share(guard.ceiling)}"
    bound = formats.margin(guard.margin)
    if effect.lower > -guard.margin:
        return f"holds -{bound}"
    return f"broken -{bound}" if effect.upper < -guard.margin else f"open -{bound}"


def _tone(effect: Effect, guard: Guard | None, inert: bool) -> str:
    if inert:
        return "muted"
    if effect.lower > 0:
        return "good"
    margin = guard.margin if guard is not None and guard.ceiling is None else 0.0
    return "bad" if effect.upper < -margin else "neutral"


def _span(effects: Sequence[Effect], gain: float) -> float:
    """Half-width of the drawing, log ratio: room for all finite ends and twice the gain."""
    ends = [abs(end) for effect in effects for end in (effect.lower, effect.upper)]
    return max([2 * gain, *(end for end in ends if math.isfinite(end))]) * 1.05


def _bar(effect: Effect, gain: float, span: float) -> Bar:
    low, mid, high = (_place(x, span) for x in (effect.lower, effect.estimate, effect.upper))
    gain_low, gain_high = _place(-gain, span), _place(gain, span)
    return Bar(
        lower=low,
        estimate=mid,
        upper=high,
        length=max(2, high - low),
        gain_low=gain_low,
        gain_high=gain_high,
        gain_length=gain_high - gain_low,
        strip=_strip(low, mid, high),
    )


def _place(value: float, span: float) -> int:
    share = max(-1.0, min(1.0, value / span))
    return round((share + 1) / 2 * WIDTH)


def _strip(low: int, mid: int, high: int) -> str:
    """``          |  [--o--]   ``: the same drawing in characters."""
    first, middle, last = (round(x / WIDTH * (STRIP - 1)) for x in (low, mid, high))
    cells = [" "] * STRIP
    cells[(STRIP - 1) // 2] = "│"
    for index in range(first, last + 1):
        cells[index] = "━"
    cells[middle] = "●"
    return "".join(cells)


def state_rows(record: RunRecord) -> tuple[StateRow, ...]:
    """The axis states of the last look."""
    return tuple(_state_row(state) for state in (record.looks[-1].states if record.looks else ()))


STATE_WORDS = {
    "failing": "target missed",
    "passing": "target reached",
    "undecided": "undecided",
    "wanted": "no target set (counts as failing)",
    "ignored": "no target set (counts as passing)",
}
"""Axis states in words."""

STATE_TONES = {"failing": "bad", "passing": "good", "undecided": "neutral"}


def _state_row(state: AxisState) -> StateRow:
    ratio = "-" if state.ratio is None else formats.ratio(state.ratio, state.lower, state.upper)
    name = formats.shortened(state.oracle)
    how = " ".join(part for part in (name, _bracket(state.oracle_mode)) if part)
    return StateRow(
        axis=state.axis,
        state=STATE_WORDS[state.state],
        target=state.target or "-",
        ratio=ratio,
        runs=formats.count(state.runs, "run") if state.runs else "-",
        how=state.missing or how or "-",
        tone=STATE_TONES.get(state.state, "muted"),
    )


def _bracket(text: str) -> str:
    return f"({text})" if text else ""
