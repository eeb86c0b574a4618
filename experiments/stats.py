"""Paired samples to effects: the signed log ratio of each axis at a look, with its interval.

One process of one arm gives one number per axis; a pair gives d = sign x log(cand / ref), > 0 is
better. The estimate is the intercept of least squares d ~ 1 + o with o = +1 where the reference ran
first and -1 where it ran second, on n - 2 degrees of freedom. Everything here is in log ratios.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from experiments.records import Effect, LostPair, Sample
from experiments.sequential import Method, nominal_p, t_mixture_half_width, t_mixture_p
from levers.policy import Axis

DETERMINISTIC_RANGE = 1e-4
"""An axis whose d spans less than this (0.01 %) repeats exactly: compared without a t interval."""

FEWEST_UNITS = 3
"""With an intercept and an order effect, fewer units leave no degree of freedom for the noise."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PairValues:
    """Both arms' values of one valid pair; ``order`` is +1 where the reference ran first."""

    pair: int
    order: int
    ref: Mapping[str, float]
    cand: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """Least squares of d on intercept and order."""

    estimate: float
    stderr: float
    sd: float
    dof: int
    residuals: Floats


def paired(samples: Sequence[Sample], lost: Sequence[LostPair]) -> tuple[PairValues, ...]:
    """The valid pairs in order: both arms are there and no run of theirs was lost.

    Of two samples of one run the later counts: a pair that was cut in half is run again whole.
    """
    gone = {one.pair for one in lost if one.arm in ("ref", "cand")}
    ref = {s.pair: s for s in samples if s.arm == "ref"}
    cand = {s.pair: s for s in samples if s.arm == "cand"}
    return tuple(
        PairValues(pair, 1 if ref[pair].position == 0 else -1, ref[pair].values, cand[pair].values)
        for pair in sorted(ref.keys() & cand.keys() - gone)
    )


def effects_at(
    pairs: Sequence[PairValues],
    axes: Iterable[Axis],
    looks: Sequence[int],
    index: int,
    method: Method = "group-sequential",
) -> tuple[Effect, ...]:
    """The effects of all axes at a planned look, from the first ``looks[index]`` valid pairs.

    An axis that any of these pairs lacks, or for which a value has no logarithm, has no effect.

    Raises:
        ValueError: fewer valid pairs than the look asks for.
    """
    if len(pairs) < looks[index]:
        raise ValueError(f"{len(pairs)} valid pairs; the look needs {looks[index]}")
    used = pairs[: looks[index]]
    found = (axis_effect(axis, used, looks, index, method) for axis in axes)
    return tuple(effect for effect in found if effect is not None)


def axis_effect(
    axis: Axis,
    pairs: Sequence[PairValues],
    looks: Sequence[int],
    index: int,
    method: Method = "group-sequential",
) -> Effect | None:
    """The effect of one axis from exactly these pairs; None where a value is missing."""
    d = log_ratios(axis, pairs)
    if d is None:
        return None
    orders = np.array([pair.order for pair in pairs], dtype=np.float64)
    return effect_of(axis.name, d, orders, looks, index, method)


def log_ratios(axis: Axis, pairs: Sequence[PairValues]) -> Floats | None:
    """The d of each pair, or None where a value is missing, not finite or not positive."""
    ref = np.array([pair.ref.get(axis.name, math.nan) for pair in pairs], dtype=np.float64)
    cand = np.array([pair.cand.get(axis.name, math.nan) for pair in pairs], dtype=np.float64)
    both = np.concatenate([ref, cand])
    if not (np.isfinite(both).all() and (both > 0).all()):
        return None
    d: Floats = axis.sign * (np.log(cand) - np.log(ref))
    return d


def effect_of(
    name: str,
    d: Floats,
    orders: Floats,
    looks: Sequence[int],
    index: int,
    method: Method = "group-sequential",
) -> Effect | None:
    """The effect behind one series of d; None where order and effect cannot be told apart.

    Where the order-adjusted residuals are correlated from pair to pair, the unit becomes the mean
    of two adjacent pairs; looks and degrees of freedom then count units.
    """
    p = nominal_p(looks, index, method)
    if d.max() - d.min() < DETERMINISTIC_RANGE:
        return _deterministic(name, d, p)
    fit = fitted(d, orders)
    if fit is None:
        return None
    r = lag_one(fit.residuals)
    if not correlated(r, len(d)) or len(d) // 2 < FEWEST_UNITS:
        return _interval(name, fit, p, method, r, unit_pairs=1)
    in_units = tuple(n // 2 for n in looks)
    unit_fit = fitted(_two_by_two(d), _two_by_two(orders))
    if unit_fit is None:
        return None
    p = nominal_p(in_units, index, method)
    return _interval(name, unit_fit, p, method, lag_one(unit_fit.residuals), unit_pairs=2)


def fitted(d: Floats, orders: Floats) -> Fit | None:
    """Least squares d ~ 1 + o with n - 2 degrees of freedom.

    Where units mix both orders evenly the covariate vanishes; the degree of freedom is still paid.
    None where all pairs ran in one order, so that it cannot be told from the effect, or n < 3.
    """
    n = len(d)
    centre = float(orders.mean())
    spread = float(((orders - centre) ** 2).sum())
    if n < FEWEST_UNITS or (spread < 1e-12 and abs(centre) > 1e-12):
        return None
    slope = float(((orders - centre) * d).sum()) / spread if spread > 1e-12 else 0.0
    estimate = float(d.mean()) - slope * centre
    residuals = d - estimate - slope * orders
    sd = math.sqrt(float((residuals**2).sum()) / (n - 2))
    share = 1 / n + (centre**2 / spread if spread > 1e-12 else 0.0)
    return Fit(estimate, sd * math.sqrt(share), sd, n - 2, residuals)


def lag_one(residuals: Floats) -> float:
    """Lag-1 autocorrelation of residuals that have mean zero; 0 where they are all zero."""
    total = float((residuals**2).sum())
    return float((residuals[:-1] * residuals[1:]).sum()) / total if total > 0 else 0.0


def correlated(r: float, units: int) -> bool:
    """Whether a lag-1 correlation is beyond what independent units show (2 / sqrt(n))."""
    return r > 2 / math.sqrt(units)


def untrusted(effect: Effect) -> bool:
    """Whether the effect's units are still correlated, so that its interval proves nothing."""
    r = effect.autocorrelation
    return r is not None and correlated(r, effect.units)


def p_of_shift(effect: Effect, shift: float) -> float:
    """Two-sided p of the hypothesis that the true effect equals ``shift``."""
    if effect.kind == "deterministic":
        return 1.0 if effect.lower <= shift <= effect.upper else 0.0
    if effect.stderr == 0:
        return 1.0 if effect.estimate == shift else 0.0
    t = (effect.estimate - shift) / effect.stderr
    if effect.kind == "sequence":
        return t_mixture_p(t, effect.dof, (effect.sd / effect.stderr) ** 2)
    return float(2 * stdtr(effect.dof, -abs(t)))


def p_above(effect: Effect, shift: float) -> float:
    """The p of "not better than ``shift``": two-sided where the estimate is above it, else 1."""
    return p_of_shift(effect, shift) if _trusted_side(effect, effect.estimate > shift) else 1.0


def p_below(effect: Effect, shift: float) -> float:
    """The p of "not worse than ``shift``": two-sided where the estimate is below it, else 1."""
    return p_of_shift(effect, shift) if _trusted_side(effect, effect.estimate < shift) else 1.0


def holm(ps: Sequence[float], alpha: float) -> tuple[bool, ...]:
    """Which hypotheses are rejected with the family's error at most alpha (Holm, 1979)."""
    rejected = [False] * len(ps)
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if not ps[place] < alpha / (len(ps) - rank):
            break
        rejected[place] = True
    return tuple(rejected)


def half_width(effect: Effect) -> float:
    """Half of the interval: the smallest effect that this look could have told from zero."""
    return 0.5 * (effect.upper - effect.lower)


def binomial_p(one: int, other: int) -> float:
    """Exact two-sided p that a fair coin falls this unevenly or worse."""
    n, least = one + other, min(one, other)
    if n == 0:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(least + 1)) / 2**n
    return float(min(1.0, 2 * tail))


def _trusted_side(effect: Effect, side: bool) -> bool:
    return side and not untrusted(effect)


def _two_by_two(values: Floats) -> Floats:
    """Means of adjacent pairs; an odd last one is left out."""
    even: Floats = values[: len(values) // 2 * 2].reshape(-1, 2).mean(axis=1)
    return even


def _deterministic(name: str, d: Floats, p: float) -> Effect:
    return Effect(
        axis=name,
        kind="deterministic",
        units=len(d),
        estimate=float(np.median(d)),
        lower=float(d.min()),
        upper=float(d.max()),
        sd=float(d.std()),
        nominal_p=p,
    )


def _interval(name: str, fit: Fit, p: float, method: Method, r: float, unit_pairs: int) -> Effect:
    if method == "anytime":
        half = t_mixture_half_width(fit.stderr, fit.dof, (fit.sd / fit.stderr) ** 2, p)
    else:
        half = fit.stderr * float(stdtrit(fit.dof, 1 - p / 2))
    return Effect(
        axis=name,
        kind="sequence" if method == "anytime" else "t",
        units=len(fit.residuals),
        estimate=fit.estimate,
        lower=fit.estimate - half,
        upper=fit.estimate + half,
        sd=fit.sd,
        nominal_p=p,
        stderr=fit.stderr,
        dof=fit.dof,
        autocorrelation=r,
        unit_pairs=2 if unit_pairs == 2 else 1,
    )
