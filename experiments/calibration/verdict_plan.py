"""What a verdict will take, before a run: pairs, minutes, power at each look, cost of the guards.

Runs are drawn from noise that was measured on this machine, an assumed effect is added, and the
real stopping loop decides them. The axes are taken to be failing, all of them engaged, and the
parity battery passed: that is what would let the lever ship.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from experiments.calibration.rates import Noise, draw, redrawn
from experiments.power import pairs_for_half_width
from experiments.sequential import nominal_ps
from experiments.simulated_effects import Floats
from experiments.simulated_runs import Ends, Rules, run_all
from levers.errors import UnknownName
from levers.policy import GatingPolicy

RUNS = 1000
"""Drawn runs: a power of 80 % is then known to 1.3 %."""

OPEN_MARGIN = 100.0
"""A margin (log ratio) that every guard keeps: what a run without guards would take."""

NEAR_GAIN = 1.25
"""Up to this multiple of the smallest gain, the estimate may fall below it and prove nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownNoise:
    """Noise that was measured, where it is from, and what a pair costs."""

    noise: Noise
    source: str
    seconds_per_pair: float


@dataclasses.dataclass(frozen=True, slots=True)
class LookPower:
    """What will be known by one look: shares of runs, and the time until it."""

    pairs: int
    minutes: float
    verdict: float
    on: float
    verdict_without_guards: float


@dataclasses.dataclass(frozen=True, slots=True)
class GuardCost:
    """One guard: its noise, its margin, and the pairs that prove it where nothing changes.

    ``pairs`` is None where no reasonable number does: the noise must be lowered.
    """

    axis: str
    margin: float
    sd: float
    pairs: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class VerdictPlan:
    """What a verdict on a lever will take.

    Attributes:
        effect: the assumed effect (log ratio) of the axes in ``on``.
        mean_pairs: mean over the drawn runs; ``likely_pairs`` suffice in nine of ten, or None.
        guard_pairs: mean pairs that the guards add.
        ends: share of the drawn runs by reason code.
        battery_s: seconds of the parity battery in the lever's last run; None if it never ran.
    """

    lever: str
    workload: str
    effect: float
    on: tuple[str, ...]
    source: str
    mean_pairs: float
    mean_minutes: float
    likely_pairs: int | None
    likely_minutes: float | None
    guard_pairs: float
    ends: Mapping[str, float]
    looks: tuple[LookPower, ...]
    guards: tuple[GuardCost, ...]
    battery_s: float | None = None
    notes: tuple[str, ...] = ()


def plan_verdict(
    lever: str,
    workload: str,
    rules: Rules,
    known: KnownNoise,
    *,
    effect: float,
    on: str = "*",
    battery_s: float | None = None,
    seed: int = 0,
) -> VerdictPlan:
    """Draw runs with this effect and decide them, with and without the guards.

    Raises:
        UnknownName: no primary axis fits ``on``.
    """
    primaries = [name for name in rules.names if rules.policy.is_primary(name)]
    moved = tuple(name for name in primaries if fnmatch.fnmatchcase(name, on))
    if not moved:
        raise UnknownName("primary axis", on, primaries)
    d, orders = _drawn(rules, known.noise, effect, moved, seed)
    ends = run_all(rules, d, orders)
    alone = run_all(_without_guards(rules), d, orders)
    minutes = known.seconds_per_pair / 60
    likely = _likely(ends, rules.looks)
    return VerdictPlan(
        lever=lever,
        workload=workload,
        effect=effect,
        on=moved,
        source=known.source,
        mean_pairs=float(ends.pairs.mean()),
        mean_minutes=float(ends.pairs.mean()) * minutes,
        likely_pairs=likely,
        likely_minutes=None if likely is None else likely * minutes,
        guard_pairs=float((ends.pairs - alone.pairs).mean()),
        ends={k: n / RUNS for k, n in Counter(ends.reasons.tolist()).most_common()},
        looks=_looks(rules.looks, ends, alone, minutes),
        guards=_guards(rules, known.noise),
        battery_s=battery_s,
        notes=_notes(rules.policy, effect),
    )


def _drawn(
    rules: Rules, noise: Noise, effect: float, moved: tuple[str, ...], seed: int
) -> tuple[Floats, Floats]:
    """d_RnA of the rules' axes with the effect in it, and orders_Rn."""
    rng = np.random.default_rng(seed)
    columns = [noise.axes.index(name) for name in rules.names]
    drawn = draw(rng, noise.blocks[:, :, columns], RUNS, rules.looks[-1])
    d, orders = redrawn(rng, drawn)
    return d + np.array([effect if name in moved else 0.0 for name in rules.names]), orders


def _without_guards(rules: Rules) -> Rules:
    free = dataclasses.replace(rules.policy, guards=(), primary_margin=OPEN_MARGIN)
    return dataclasses.replace(rules, policy=free)


def _likely(ends: Ends, looks: tuple[int, ...]) -> int | None:
    """The look by which nine of ten runs have a verdict."""
    shares = zip(looks, ends.decided_by(looks), strict=True)
    return next((look for look, share in shares if share >= 0.9), None)


def _looks(
    looks: tuple[int, ...], ends: Ends, alone: Ends, minutes: float
) -> tuple[LookPower, ...]:
    shipped = np.isin(ends.reasons, ("failing-axis-win", "byte-exact"))
    rows = zip(looks, ends.decided_by(looks), alone.decided_by(looks), strict=True)
    return tuple(
        LookPower(
            pairs=look,
            minutes=look * minutes,
            verdict=verdict,
            on=float((shipped & (ends.pairs <= look)).mean()),
            verdict_without_guards=free,
        )
        for look, verdict, free in rows
    )


def _guards(rules: Rules, noise: Noise) -> tuple[GuardCost, ...]:
    """Every guard, the primaries in that role among them, the dearest first."""
    level = nominal_ps(rules.looks)[-1]
    found = []
    for name in rules.names:
        guard = rules.policy.guard_for(name)
        if guard is None or guard.ceiling is not None:
            continue
        sd = float(noise.differences[:, noise.axes.index(name)].std(ddof=1))
        pairs = pairs_for_half_width(sd, guard.margin, level)
        found.append(GuardCost(name, guard.margin, sd, pairs))
    return tuple(sorted(found, key=lambda g: -(math.inf if g.pairs is None else g.pairs)))


def _notes(policy: GatingPolicy, effect: float) -> tuple[str, ...]:
    gain = policy.smallest_gain
    if 0 < effect <= NEAR_GAIN * gain:
        return (
            f"the smallest gain worth keeping is {gain * 100:.3g} %: with an effect so near to it "
            "the estimate often falls below, and no win is proven",
        )
    return ()
