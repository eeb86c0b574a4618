"""What a campaign file says: a workload and device, axes with targets, levers, closed paths.

A *measured* campaign is run on a device. A *recorded* one holds figures that others published; it
is decided again from them and touches no device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from experiments.parsing import budget_seconds
from experiments.policy_replay.corpus import RecordedDecision
from experiments.values import FrozenMap, Scalar, Value
from levers.errors import UsageError
from levers.policy import Axis

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""A campaign's name is its file's, and part of an MLflow experiment."""

FEWEST_BLOCKS, DEFAULT_BLOCKS = 4, 6
"""Blocks of a binding run; an interval needs four, and every second one is a mirror."""

Text = Annotated[str, Field(min_length=1)]
PathState = Literal["declined", "unbuilt"]


class Goal(Value):
    """The target of one axis.

    Attributes:
        axis: name of an axis that the workload reports.
        at_least: the factor to be reached, of the oracle's value or of ``value``; > 1 is better,
            whichever way the axis points.
        value: an absolute target in the axis's unit; without it the oracle's value is the target.
    """

    axis: Text
    at_least: float = Field(default=1.0, gt=0)
    value: float | None = Field(default=None, gt=0)

    def describe(self, oracle: str, axis: Axis | None = None) -> str:
        """``>= 1.00 x sdpa``, or an absolute value with its unit."""
        if self.value is None:
            return f">= {self.at_least:.2f} x {oracle or 'oracle'}"
        unit = axis.unit if axis else ""
        sign = "<=" if axis is not None and not axis.higher_is_better else ">="
        least = self.value * self.at_least ** (axis.sign if axis else 1)
        return f"{sign} {least:g} {unit}".rstrip()


class PlannedLever(Value):
    """A lever with the settings that are its candidates; several are a selection.

    Attributes:
        lever: a name in the catalog.
        candidates: settings other than ``off``, which is the reference.
        budget: limit of the measuring of this lever (``90s``); empty takes the campaign's.
        pairs: at most this many pairs; None is the default plan.
        tokens_not_on: models of the campaign's ``tokens_on`` that these candidates have no kernels
            for, wherever they are on.
    """

    lever: Text
    candidates: tuple[Text, ...] = Field(min_length=1)
    budget: str = ""
    pairs: int | None = Field(default=None, ge=1)
    tokens_not_on: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _usable(self) -> PlannedLever:
        if "off" in self.candidates:
            raise ValueError(f"{self.lever}: off is the reference and no candidate")
        _once(self.candidates, f"candidate of {self.lever}")
        _time(self.budget)
        return self


class ClosedPath(Value):
    """A path that was declined, or that nobody has built yet, and why."""

    name: Text
    state: PathState
    reason: Text


class Campaign(Value):
    """One row that is measured.

    Attributes:
        device: ``cpu`` or ``cuda``.
        device_kind: a part that the device's name must hold, such as ``H200``; empty takes any.
        oracle: the outside implementation that targets are held against.
        lever_oracle: the same at fewer concurrencies, say, for the comparisons of the levers; empty
            takes ``oracle``, with which the binding run is always measured.
        parameters: of the workload, where they differ from its defaults.
        tokens_on: models with which tokens are compared in place of the timed one, in the
            comparison of each lever and in the binding run.
        budget, lever_budget: limits of the whole run, and of the measuring of each lever.
        blocks: of the binding run.
    """

    kind: Literal["measured"] = "measured"
    name: Text
    summary: Text
    workload: Text
    device: Literal["cpu", "cuda"]
    device_kind: str = ""
    oracle: Text
    lever_oracle: str = ""
    parameters: FrozenMap[Scalar] = Field(default_factory=dict)
    tokens_on: tuple[Text, ...] = ()
    axes: tuple[Goal, ...] = Field(min_length=1)
    levers: tuple[PlannedLever, ...] = Field(min_length=1)
    paths: tuple[ClosedPath, ...] = ()
    budget: str = ""
    lever_budget: str = ""
    blocks: int = Field(default=DEFAULT_BLOCKS, ge=FEWEST_BLOCKS)
    seed: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _sound(self) -> Campaign:
        _named(self.name)
        _once((goal.axis for goal in self.axes), "axis")
        _once([*(one.lever for one in self.levers), *(one.name for one in self.paths)], "path")
        _time(self.budget)
        _time(self.lever_budget)
        if self.blocks % 2:
            raise ValueError(f"blocks = {self.blocks}: every second block is a mirror, give 4 or 6")
        return self

    @property
    def settings(self) -> dict[str, str]:
        """The parameters as the workload takes them, as text."""
        return {name: str(value) for name, value in self.parameters.items()}

    @property
    def named(self) -> frozenset[str]:
        """The names of the levers and paths that the file speaks of."""
        return frozenset([*(one.lever for one in self.levers), *(one.name for one in self.paths)])


class RecordedGoal(Value):
    """An axis as published: the ratio to its target before and with the default-ON levers."""

    axis: Text
    target: Text
    ratio: float = Field(gt=0)
    before: float | None = Field(default=None, gt=0)


class RecordedLever(Value):
    """A lever as published.

    Attributes:
        decision: its arms, gates and figures; decided again by the rules of a live run.
        figures: whether any were published; without them the verdict is the recorded one, and the
            row says that it was not decided again.
        setting: the candidate.
        acceptance, credit: as published, in words; empty where nothing was said.
    """

    decision: RecordedDecision
    setting: Text
    figures: bool = True
    acceptance: str = ""
    credit: str = ""

    @model_validator(mode="after")
    def _sound(self) -> RecordedLever:
        if not self.figures and (self.decision.axes or self.decision.parity):
            raise ValueError(f"{self.decision.lever}: it has figures, so it is decided from them")
        if not self.figures and self.decision.outcome is None:
            raise ValueError(f"{self.decision.lever}: neither figures nor a verdict were recorded")
        return self


class RecordedCampaign(Value):
    """A row whose figures were published by others; it is decided again from them."""

    kind: Literal["recorded"]
    name: Text
    summary: Text
    workload: Text
    device_kind: Text
    source: Text
    policy: str = "default"
    axes: tuple[RecordedGoal, ...] = Field(min_length=1)
    levers: tuple[RecordedLever, ...] = Field(min_length=1)
    paths: tuple[ClosedPath, ...] = ()
    residual: str = ""
    binding: str = ""
    doubts: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _sound(self) -> RecordedCampaign:
        _named(self.name)
        _once((goal.axis for goal in self.axes), "axis")
        names = [one.decision.lever for one in self.levers]
        _once([*names, *(one.name for one in self.paths)], "path")
        return self


AnyCampaign: TypeAlias = Campaign | RecordedCampaign


def _named(name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise ValueError(f"name = {name!r}: use small letters, digits and single hyphens")


def _once(names: Iterable[str], what: str) -> None:
    found: Sequence[str] = list(names)
    for name in found:
        if found.count(name) > 1:
            raise ValueError(f"the {what} {name} is named {found.count(name)} times")


def _time(text: str) -> None:
    """A budget is read where the file is, not when it is spent."""
    if not text:
        return
    try:
        budget_seconds(text)
    except UsageError as error:
        raise ValueError(f"{text!r} is no time: write 90s, 3m or 1h30m") from error
