"""The record of a screen: rough effects of several settings, from one process. It is no verdict.

It has no outcome, no interval and no place in the registry, so that nothing can be decided from it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from experiments.spec import LeverSetting
from experiments.tasks import Visit
from experiments.values import SCHEMA_VERSION, FrozenMap, Scalar, Value
from levers.policy import Axis


class RoughEffect(Value):
    """Log ratio to the reference of one axis, > 0 is better: mean and range over the rounds."""

    axis: str
    mean: float
    lowest: float
    highest: float
    rounds: int


class ScreenRow(Value):
    """One candidate: rough effects on all axes, or why there are none.

    ``score`` is the mean over the primary axes; ``same_plan``: it ran what the reference runs.
    """

    setting: str
    score: float | None = None
    effects: tuple[RoughEffect, ...] = ()
    plans: FrozenMap[str] = Field(default_factory=dict)
    same_plan: bool = False
    compilations: int = 0
    failure: str = ""

    def effect(self, axis: str) -> RoughEffect | None:
        """The rough effect on an axis, if it was measured."""
        return next((one for one in self.effects if one.axis == axis), None)


class ScreenRecord(Value):
    """A screen. ``rows`` come with the best first; ``visits`` are the raw figures.

    ``beside`` are the other levers that were on in both arms. ``left_changed`` names global state
    that a setting did not put back: it touched all later ones.
    """

    schema_version: int = SCHEMA_VERSION
    kind: Literal["screen"] = "screen"
    screen_id: str
    created_at: str
    lever: str
    ref: str
    workload: str
    parameters: FrozenMap[Scalar]
    device: str
    device_kind: str
    stack: str
    seed: int
    axes: tuple[Axis, ...]
    primaries: tuple[str, ...]
    rows: tuple[ScreenRow, ...]
    rounds: int
    visits: tuple[Visit, ...] = ()
    failure: str = ""
    left_changed: tuple[str, ...] = ()
    beside: tuple[LeverSetting, ...] = ()
    total_s: float = 0.0


def rows_of(
    ref: str,
    candidates: Sequence[str],
    axes: Sequence[Axis],
    primaries: Sequence[str],
    visits: Sequence[Visit],
) -> tuple[ScreenRow, ...]:
    """The candidates, ordered by their mean log ratio over the primary axes; failed ones last."""
    rows = [_row(ref, one, axes, primaries, visits) for one in candidates]
    worst = -math.inf
    return tuple(sorted(rows, key=lambda row: -(worst if row.score is None else row.score)))


def _row(
    ref: str,
    setting: str,
    axes: Sequence[Axis],
    primaries: Sequence[str],
    visits: Sequence[Visit],
) -> ScreenRow:
    mine = {visit.round: visit for visit in visits if visit.setting == setting}
    theirs = {visit.round: visit for visit in visits if visit.setting == ref}
    found = (_rough(axis, mine, theirs) for axis in axes)
    effects = tuple(one for one in found if one is not None)
    primary = [one.mean for one in effects if one.axis in primaries]
    failed = next((visit for visit in mine.values() if visit.failure is not None), None)
    first, reference = mine.get(0), theirs.get(0)
    plans = dict(first.plans) if first is not None else {}
    return ScreenRow(
        setting=setting,
        score=statistics.fmean(primary) if primary and failed is None else None,
        effects=effects if failed is None else (),
        plans=plans,
        same_plan=bool(plans) and reference is not None and plans == dict(reference.plans),
        compilations=sum(visit.compilations for visit in mine.values()),
        failure=f"{failed.failure}: {failed.message}" if failed is not None else "",
    )


def _rough(axis: Axis, mine: dict[int, Visit], theirs: dict[int, Visit]) -> RoughEffect | None:
    """Rounds in which both sides have the axis; None where no round has."""
    ratios = [
        axis.sign * math.log(mine[number].values[axis.name] / theirs[number].values[axis.name])
        for number in sorted(mine.keys() & theirs.keys())
        if axis.name in mine[number].values and axis.name in theirs[number].values
    ]
    if not ratios:
        return None
    return RoughEffect(
        axis=axis.name,
        mean=statistics.fmean(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        rounds=len(ratios),
    )
