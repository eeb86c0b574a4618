"""What must hold for a lever to ship ON: axes, guards, parity classes and the gating policy.

Frozen values without torch or pydantic, so that ``list`` and ``--help`` start fast. All margins and
gains are **log ratios** (0.01 is shown as 1 %), signed so that > 0 is better.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

MAX_GUARDS = 6
"""More guards leave a neutral lever undecided too often (44 % of runs with 12 at s = 1.8 %)."""


class ParityClass(StrEnum):
    """How far a candidate is from the reference and from fp64 truth, strongest first."""

    BYTE_EXACT = "byte-exact"
    LOSSLESS = "lossless"
    TOLERATED = "tolerated"
    BROKEN = "broken"

    @property
    def rank(self) -> int:
        """0 for the strongest class."""
        return tuple(ParityClass).index(self)

    def weaker(self, other: ParityClass) -> ParityClass:
        """The weaker of two classes: what a run may call itself."""
        return self if self.rank >= other.rank else other

    def satisfies(self, demanded: ParityClass) -> bool:
        """Whether this class is at least as strong as the one demanded."""
        return self.rank <= demanded.rank


@dataclass(frozen=True, slots=True)
class Axis:
    """One measured quantity of a workload, such as ``decode/tok_s/c1``.

    ``deterministic`` says that the axis is expected to repeat exactly (peak bytes on CUDA, counts);
    whether it did is read from the data.
    """

    name: str
    unit: str
    higher_is_better: bool
    deterministic: bool = False

    @property
    def sign(self) -> int:
        """+1 where more is better, -1 where less is."""
        return 1 if self.higher_is_better else -1


@dataclass(frozen=True, slots=True)
class Guard:
    """An axis (or pattern of axes) that may not get worse by more than ``margin`` (a log ratio).

    ``ceiling`` guards absolutely instead: the candidate's value, as a share of the capacity that
    the workload states for this axis (0.75 of the device's memory), may not exceed it.
    """

    axis: str
    margin: float = 0.01
    ceiling: float | None = None

    def covers(self, axis: str) -> bool:
        """Whether this guard's pattern names the axis."""
        return fnmatch.fnmatchcase(axis, self.axis)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest relative error (L2, against fp64) that a ``tolerated`` lever may show, and why.

    Attributes:
        relative_error: of one call of the changed operation.
        reason: where that error comes from.
        gradient_error: of a parameter's gradient after the whole backward, through which the errors
            of many calls pass; None where gradients are held to the lossless bounds.
    """

    relative_error: float
    reason: str
    gradient_error: float | None = None


NEAR_TIE_GAP_NAT = 0.5
"""Largest logit gap at which a divergence is a near-tie; a policy that allows more makes a run with
such a divergence ``tolerated`` at best."""


@dataclass(frozen=True, slots=True)
class GatingPolicy:
    """The bar for default-ON, set before the first sample.

    Attributes:
        primaries: axis patterns where a win counts; each engaged primary is also a guard.
        guards: axes that may not get worse; at most :data:`MAX_GUARDS`.
        claims: the parity class that the lever claims; a run is never promoted above it.
        demands: the weakest class that may ship; by default what is claimed.
        smallest_gain: smallest gain worth keeping, log ratio.
        primary_margin: margin of the primaries in their role as guards, log ratio.
        needs_win: a byte-exact lever, too, must win on a failing axis.
        strict_tokens: every greedy stream must be equal, near-ties included.
        near_tie_share: largest share of streams that may diverge at a near-tie.
        near_tie_gap_nat: largest logit gap, in nat, at which a divergence is a near-tie.
        untargeted: whether an axis without a target counts as failing ("wanted") or passing.
        tolerance: for levers that claim ``tolerated``.
    """

    primaries: tuple[str, ...]
    guards: tuple[Guard, ...] = ()
    claims: ParityClass = ParityClass.LOSSLESS
    demands: ParityClass | None = None
    smallest_gain: float = 0.01
    primary_margin: float = 0.01
    needs_win: bool = False
    strict_tokens: bool = False
    near_tie_share: float = 0.01
    near_tie_gap_nat: float = NEAR_TIE_GAP_NAT
    untargeted: Literal["wanted", "ignored"] = "wanted"
    tolerance: Tolerance | None = None

    def __post_init__(self) -> None:
        if not self.primaries:
            raise ValueError("a policy needs at least one primary axis: a win must count somewhere")
        if len(self.guards) > MAX_GUARDS:
            raise ValueError(f"{len(self.guards)} guards; at most {MAX_GUARDS} can be proven")
        if self.claims is ParityClass.BROKEN:
            raise ValueError("a lever cannot claim to be broken")
        if self.claims is ParityClass.TOLERATED and self.tolerance is None:
            raise ValueError("a tolerated lever declares its tolerance, with the reason")

    @property
    def demanded(self) -> ParityClass:
        """The weakest parity class that may ship."""
        return self.claims if self.demands is None else self.demands

    def is_primary(self, axis: str) -> bool:
        """Whether a win on this axis counts."""
        return any(fnmatch.fnmatchcase(axis, pattern) for pattern in self.primaries)

    def guard_for(self, axis: str) -> Guard | None:
        """The guard that covers the axis: a named one first, else the primary's own margin."""
        for guard in self.guards:
            if guard.covers(axis):
                return guard
        return Guard(axis, self.primary_margin) if self.is_primary(axis) else None
