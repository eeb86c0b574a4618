"""What a binding run says: each target of what ships, and what each lever brings to the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from experiments import formats
from experiments.campaign.records import AxisReached, Credited, LeverStanding
from experiments.campaign.rules import standing
from experiments.campaign.spec import Goal
from experiments.records import Effect
from experiments.stack.records import Contrast, StackRecord
from experiments.stack.stats import holm_p
from experiments.stats import p_of_shift
from levers.policy import Axis

LEVEL = 0.05
"""Adjusted p (Holm over the axes of a lever) below which a credit is told from zero."""

MARGIN = 0.01
"""A loss of the whole that contradicts a lever's verdict, as a log ratio (design: decisions, 1)."""

LARGEST = 700.0
"""Logs of factors are shown up to this, below the largest double."""


def axes_of(record: StackRecord, goals: Sequence[Goal]) -> tuple[AxisReached, ...]:
    """Each target against what ships, in the blocks of the binding run."""
    return tuple(_axis(record, goal) for goal in goals)


def unmeasured(goals: Sequence[Goal], oracle: str, why: str) -> tuple[AxisReached, ...]:
    """The targets where there is no binding run."""
    name = formats.shortened(oracle)
    return tuple(
        AxisReached(axis=goal.axis, target=goal.describe(name), state="unmeasured", missing=why)
        for goal in goals
    )


def _axis(record: StackRecord, goal: Goal) -> AxisReached:
    oracle = record.spec.oracle.oracle if record.spec.oracle else ""
    axis = record.axis(goal.axis)
    target = goal.describe(formats.shortened(oracle), axis)
    found, missing = _interval(record, goal, axis)
    if found is None:
        return AxisReached(axis=goal.axis, target=target, state="unmeasured", missing=missing)
    ratio, lower, upper = (_factor(value - math.log(goal.at_least)) for value in found)
    return AxisReached(
        axis=goal.axis,
        target=target,
        state=standing(lower, upper),
        ratio=ratio,
        lower=lower,
        upper=upper,
        blocks=len(record.analysis.blocks),
        source=record.stack_id,
    )


def _interval(
    record: StackRecord, goal: Goal, axis: Axis
) -> tuple[tuple[float, float, float] | None, str]:
    """Log of value over target with its 95 % interval, or why there is none."""
    if goal.value is not None:
        return _absolute(record, goal.value, axis), "too few values above zero"
    if not record.analysis.oracle:
        return None, "no oracle ran in the binding run"
    whole = record.analysis.oracle[-1]
    effect = whole.effect(goal.axis)
    if effect is None:
        return None, whole.missing or f"the oracle reports no {goal.axis}"
    return (effect.estimate, effect.lower, effect.upper), ""


def _absolute(record: StackRecord, target: float, axis: Axis) -> tuple[float, float, float] | None:
    """The t interval of log(value / target) over the blocks, > 0 where it is reached."""
    counted = [one for one in record.of_whole if one.pair in record.analysis.blocks]
    values = [one.values.get(axis.name, math.nan) for one in counted]
    if len(values) < 2 or not all(0 < value < math.inf for value in values):
        return None
    logs = axis.sign * (np.log(np.array(values)) - math.log(target))
    n, centre = len(values), float(np.mean(logs))
    half = float(stdtrit(n - 1, 0.975)) * float(np.std(logs, ddof=1)) / math.sqrt(n)
    return centre, centre - half, centre + half


def _factor(log: float) -> float:
    return math.exp(max(-LARGEST, min(LARGEST, log)))


def credited(
    levers: Sequence[LeverStanding], record: StackRecord, goals: Sequence[Goal]
) -> tuple[LeverStanding, ...]:
    """The levers with what the binding run says of each that is on."""
    found = {one.name: one for one in record.analysis.left_out}
    return tuple(
        _credited(lever, found[lever.lever], goals) if lever.lever in found else lever
        for lever in levers
    )


def _credited(lever: LeverStanding, one: Contrast, goals: Sequence[Goal]) -> LeverStanding:
    if one.missing:
        return lever.model_copy(update={"credited": "not measured", "credit": one.missing})
    if one.inert:
        said = "inert in the whole: its sites ran the same with it and without it"
        return lever.model_copy(update={"credited": "none", "credit": said})
    effects = [effect for goal in goals if (effect := one.effect(goal.axis)) is not None]
    adjusted = holm_p([p_of_shift(effect, 0.0) for effect in effects])
    told = [effect for effect, p in zip(effects, adjusted, strict=True) if p < LEVEL]
    gains = [effect for effect in told if effect.estimate > 0]
    losses = [effect for effect in told if effect.estimate < 0]
    changes = {
        "credited": _word(gains, losses),
        "credit": _said(gains, losses, effects),
        "contradicted": any(effect.estimate < -MARGIN for effect in losses),
    }
    return lever.model_copy(update=changes)


def _word(gains: Sequence[Effect], losses: Sequence[Effect]) -> Credited:
    if gains and losses:
        return "mixed"
    if gains:
        return "gain"
    return "loss" if losses else "none"


def _said(gains: Sequence[Effect], losses: Sequence[Effect], all_: Sequence[Effect]) -> str:
    """The axes that moved with their intervals, else that none did."""
    moved = [f"{one.axis} {_text(one)}" for one in (*gains, *losses)]
    if moved:
        return "; ".join(moved)
    return f"on no axis told from zero ({len(all_)} looked at)"


def _text(effect: Effect) -> str:
    return formats.effect(effect.estimate, effect.lower, effect.upper)
