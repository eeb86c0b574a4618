"""Many runs through the real stopping loop: look after look, until the decision's rules end each.

The rules are :func:`experiments.decide.order.decide_effects` itself. To make thousands of runs
cheap, a look of a run is handed to them only where some rule can fire at all; elsewhere they would
answer "go on", which the tests check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from experiments.decide.evidence import Evidence
from experiments.decide.guards import guard_checks
from experiments.decide.order import decide_effects
from experiments.decide.wins import OPEN
from experiments.parity_records import CheckResult, ParityReport
from experiments.records import AxisState, Look, StateName
from experiments.sequential import Method
from experiments.simulated_effects import Bools, Floats, ManyEffects, effects_of_runs
from experiments.spec import DEFAULT_LOOKS
from levers.policy import Axis, GatingPolicy

UNDECIDED = "undecided"
"""The reason of a run that reached its last look without a verdict."""

WIN = "failing-axis-win"
HARM = ("regression", "slower")
"""Reasons that say of equal arms what is not so, with :data:`WIN`."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What all simulated runs share.

    Attributes:
        policy: the bar; its ceilings are not simulated.
        axes: all axes that a run reports; every primary counts as engaged.
        states: of the primaries; one that is not named is failing.
    """

    policy: GatingPolicy
    axes: tuple[Axis, ...]
    looks: tuple[int, ...] = DEFAULT_LOOKS
    method: Method = "group-sequential"
    states: Mapping[str, StateName] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names, in the order of the arrays."""
        return tuple(axis.name for axis in self.axes)

    def look_at(self, index: int, effects: ManyEffects, run: int) -> Evidence:
        """The evidence of one run at one look, as if a further one came."""
        look = Look.model_construct(
            index=index,
            pairs=self.looks[index],
            effects=effects.of_run(run),
            states=tuple(
                AxisState.model_construct(axis=name, state=self.states.get(name, "failing"))
                for name in self.names
                if self.policy.is_primary(name)
            ),
            lost=(),
            last=False,
        )
        return self._evidence(look)

    def _evidence(self, look: Look | None) -> Evidence:
        claims = self.policy.claims
        check = CheckResult(name="op", status="passed", passed=1, total=1, strongest=claims)
        return Evidence(
            policy=self.policy,
            axes=self.axes,
            looks=self.looks,
            method=self.method,
            parity=ParityReport(checks=(check,), claimed=claims),
            pairs=look.pairs if look else 0,
            look=look,
        )

    def may_decide(self, effects: ManyEffects) -> Bools:
        """Runs (R) in which some rule can fire at this look; a superset of those that end."""
        place = {name: a for a, name in enumerate(self.names)}
        template = self._evidence(None)
        guards = [g for g in guard_checks(template) if g.ceiling is None]
        margins = np.array([g.margin for g in guards])
        at = [place[g.axis] for g in guards]
        primaries = [place[name] for name in template.engaged]
        still_open = [place[n] for n in template.engaged if self.states.get(n, "failing") in OPEN]
        lower = np.where(effects.trusted, effects.lower, -np.inf)
        upper = np.where(effects.trusted, effects.upper, np.inf)
        inside = (lower[:, at] >= -margins).all(axis=1)
        worse = (upper[:, at] < -margins).any(axis=1)
        if template.ships_exact:
            return np.asarray(worse | inside | (upper[:, primaries] < 0).any(axis=1))
        gain = self.policy.smallest_gain
        won = (lower[:, primaries] > 0).any(axis=1)
        small = ((lower >= -gain) & (upper <= gain))[:, primaries].all(axis=1)
        no_win = (upper[:, still_open] < gain).all(axis=1)
        return np.asarray(worse | no_win | (inside & (won | small)))


@dataclass(frozen=True, slots=True)
class Ends:
    """How R runs ended: the reason code of each (or :data:`UNDECIDED`) and its pairs."""

    reasons: NDArray[np.str_]
    pairs: NDArray[np.int64]

    def count(self, *reasons: str) -> int:
        """How many runs ended with one of these reasons."""
        return int(np.isin(self.reasons, reasons).sum())

    def rate(self, *reasons: str) -> float:
        """The share of runs that ended with one of these reasons."""
        return self.count(*reasons) / len(self.reasons)

    def decided_by(self, looks: Sequence[int]) -> tuple[float, ...]:
        """The share of runs that had a verdict by each look."""
        verdict = self.reasons != UNDECIDED
        return tuple(float((verdict & (self.pairs <= look)).mean()) for look in looks)


def run_all(rules: Rules, d_RnA: Floats, orders_Rn: Floats) -> Ends:
    """Take every run through its looks until it is decided.

    Args:
        rules: what decides.
        d_RnA: signed log ratios of R runs, at least as many pairs as the last look, all axes.
        orders_Rn: +1 where the reference ran first in the pair, else -1.
    """
    runs = d_RnA.shape[0]
    reasons = np.full(runs, UNDECIDED, dtype="<U32")
    pairs = np.full(runs, rules.looks[-1], dtype=np.int64)
    going = np.arange(runs)
    for index, look in enumerate(rules.looks):
        effects = effects_of_runs(
            d_RnA[going], orders_Rn[going], rules.names, rules.looks, index, rules.method
        )
        for row in np.flatnonzero(rules.may_decide(effects)):
            decision = decide_effects(rules.look_at(index, effects, int(row)))
            if decision is not None:
                reasons[going[row]] = decision.reason
                pairs[going[row]] = look
        going = going[reasons[going] == UNDECIDED]
        if not len(going):
            break
    return Ends(reasons, pairs)
