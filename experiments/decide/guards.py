"""The guards of a run at a look: who must not get worse, and what is proven of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from experiments import formats
from experiments.decide.evidence import Evidence
from experiments.records import Effect
from experiments.stats import holm, p_below, untrusted


@dataclass(frozen=True, slots=True)
class GuardCheck:
    """One guard on one axis: its effect against its margin (a log ratio; 0 for a ceiling)."""

    axis: str
    margin: float
    effect: Effect | None
    ceiling: float | None = None

    @property
    def inside(self) -> bool:
        """Proven not worse than the margin."""
        effect = self.effect
        return effect is not None and not untrusted(effect) and effect.lower >= -self.margin

    @property
    def p_worse(self) -> float:
        """P of "not worse than the margin", as a share of the look's nominal p."""
        return p_below(self.effect, -self.margin) / self.effect.nominal_p if self.effect else 1.0

    def describe(self) -> str:
        """``decode/itl_ms/p95 -1.2 % [-2.0, -0.4] (margin 3 %)``."""
        effect = self.effect
        shown = effect_text(effect) if effect else f"{self.axis}: nothing recorded"
        if self.ceiling is None:
            return f"{shown} (margin {formats.margin(self.margin)})"
        if effect is None:
            return f"{self.axis}: capacity or value not known (ceiling {self.ceiling:.0%})"
        used = self.ceiling * math.exp(-effect.estimate)
        return f"{self.axis} at {used:.1%} of capacity (ceiling {self.ceiling:.0%})"


def guard_checks(evidence: Evidence) -> tuple[GuardCheck, ...]:
    """All guards: the named ones, never inert, then each engaged primary that none of them covers.

    A margin and a ceiling on one axis both hold; either replaces the primary's own margin.
    """
    return (*_margins(evidence), *_ceilings(evidence))


def proven_worse(checks: tuple[GuardCheck, ...]) -> tuple[GuardCheck, ...]:
    """The guards that are proven worse than their margin, Holm over all of them."""
    rejected = holm([check.p_worse for check in checks], 1.0)
    return tuple(check for check, worse in zip(checks, rejected, strict=True) if worse)


def effect_text(effect: Effect) -> str:
    """``decode/tok_s/c1 +17.0 % [15.0, 19.0]``."""
    return f"{effect.axis} {formats.effect(effect.estimate, effect.lower, effect.upper)}"


def _margins(evidence: Evidence) -> Iterator[GuardCheck]:
    named = [guard for guard in evidence.policy.guards if guard.ceiling is None]
    for axis in (axis.name for axis in evidence.axes):
        guard = next((guard for guard in named if guard.covers(axis)), None)
        if guard is not None:
            yield GuardCheck(axis, guard.margin, evidence.effect(axis))
        elif axis in evidence.engaged and not _only_ceiling(evidence, axis):
            yield GuardCheck(axis, evidence.policy.primary_margin, evidence.effect(axis))


def _only_ceiling(evidence: Evidence, axis: str) -> bool:
    """Whether the policy guards this axis absolutely instead of by a margin."""
    return any(guard.covers(axis) for guard in evidence.policy.guards)


def _ceilings(evidence: Evidence) -> Iterator[GuardCheck]:
    known = {(one.axis, one.guard): one.effect for one in evidence.ceilings}
    for guard in evidence.policy.guards:
        for axis in (axis.name for axis in evidence.axes):
            if guard.ceiling is not None and guard.covers(axis):
                yield GuardCheck(axis, 0.0, known.get((axis, guard)), guard.ceiling)
