"""The effects of many runs at once: :mod:`experiments.stats` over whole arrays.

Error rates and plans need the effects of thousands of simulated or resampled runs. This is the
arithmetic of :func:`experiments.stats.effect_of` in numpy, and the tests hold the two equal.

Shapes: R runs, n pairs, A axes; ``d_RnA`` are signed log ratios (> 0 is better), ``orders_Rn`` are
+1 where the reference ran first in the pair and -1 where it ran second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from experiments.records import Effect
from experiments.sequential import Method, nominal_p
from experiments.stats import DETERMINISTIC_RANGE, FEWEST_UNITS

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ManyEffects:
    """The effects of R runs on A axes at one look; every array is (R, A).

    ``known`` is False where order and effect cannot be told apart, so that there is no effect.
    """

    axes: tuple[str, ...]
    method: Method
    estimate: Floats
    lower: Floats
    upper: Floats
    sd: Floats
    stderr: Floats
    autocorrelation: Floats
    nominal_p: Floats
    units: NDArray[np.int64]
    unit_pairs: NDArray[np.int64]
    deterministic: Bools
    known: Bools

    @property
    def trusted(self) -> Bools:
        """Where the interval proves something: units not correlated from one to the next."""
        limit = 2 / np.sqrt(self.units)
        return self.known & (self.deterministic | ~(self.autocorrelation > limit))

    def of_run(self, run: int) -> tuple[Effect, ...]:
        """One run's effects as the decision reads them."""
        return tuple(self._one(run, a) for a in range(len(self.axes)) if self.known[run, a])

    def _one(self, run: int, axis: int) -> Effect:
        at = (run, axis)
        exact = bool(self.deterministic[at])
        interval = "sequence" if self.method == "anytime" else "t"
        units = int(self.units[at])
        return Effect.model_construct(
            axis=self.axes[axis],
            kind="deterministic" if exact else interval,
            units=units,
            estimate=float(self.estimate[at]),
            lower=float(self.lower[at]),
            upper=float(self.upper[at]),
            sd=float(self.sd[at]),
            nominal_p=float(self.nominal_p[at]),
            stderr=0.0 if exact else float(self.stderr[at]),
            dof=0 if exact else units - 2,
            autocorrelation=None if exact else float(self.autocorrelation[at]),
            unit_pairs=2 if self.unit_pairs[at] == 2 else 1,
        )


@dataclass(frozen=True, slots=True)
class _Fits:
    """Least squares d ~ 1 + o of every run and axis, with the interval of its look."""

    estimate: Floats
    half: Floats
    sd: Floats
    stderr: Floats
    autocorrelation: Floats
    known: Bools


def effects_of_runs(
    d_RnA: Floats,
    orders_Rn: Floats,
    axes: Sequence[str],
    looks: Sequence[int],
    index: int,
    method: Method = "group-sequential",
) -> ManyEffects:
    """The effects of all runs at a planned look, from the first ``looks[index]`` pairs of each."""
    n = looks[index]
    d, orders = d_RnA[:, :n], orders_Rn[:, :n]
    p = nominal_p(looks, index, method)
    one = _fits(d, orders, p, method)
    fields = {
        "estimate": one.estimate,
        "lower": one.estimate - one.half,
        "upper": one.estimate + one.half,
        "sd": one.sd,
        "stderr": one.stderr,
        "autocorrelation": one.autocorrelation,
        "nominal_p": np.full(one.estimate.shape, p),
        "known": one.known,
    }
    units = np.full(one.estimate.shape, n, dtype=np.int64)
    doubled = _doubled(one.autocorrelation, n)
    if doubled.any():
        in_units = tuple(look // 2 for look in looks)
        p2 = nominal_p(in_units, index, method)
        two = _fits(_two_by_two(d), _two_by_two(orders[..., None])[..., 0], p2, method)
        _replace(fields, doubled, two, p2)
        units[doubled] = n // 2
    repeats = d.max(axis=1) - d.min(axis=1) < DETERMINISTIC_RANGE
    _repeat(fields, repeats, d, p)
    units[repeats] = n
    return ManyEffects(
        axes=tuple(axes),
        method=method,
        units=units,
        unit_pairs=np.where(doubled & ~repeats, 2, 1),
        deterministic=repeats,
        known=np.asarray(fields.pop("known"), dtype=np.bool_),
        **fields,
    )


def _fits(d: Floats, orders: Floats, p: float, method: Method) -> _Fits:
    """Intercept, noise and half-width of every series; the arithmetic of ``stats.fitted``."""
    n = d.shape[1]
    o = orders[..., None]
    centre = o.mean(axis=1)
    off = o - centre[:, None]
    spread = (off**2).sum(axis=1)
    told_apart = spread > 1e-12
    safe = np.where(told_apart, spread, 1.0)
    slope = np.where(told_apart, (off * d).sum(axis=1) / safe, 0.0)
    estimate = d.mean(axis=1) - slope * centre
    residuals = d - estimate[:, None] - slope[:, None] * o
    squares = (residuals**2).sum(axis=1)
    sd = np.sqrt(squares / (n - 2)) if n > 2 else np.zeros_like(squares)
    share = 1 / n + np.where(told_apart, centre**2 / safe, 0.0)
    stderr = sd * np.sqrt(share)
    products = (residuals[:, 1:] * residuals[:, :-1]).sum(axis=1)
    lag = np.where(squares > 0, products / np.where(squares > 0, squares, 1.0), 0.0)
    known = np.broadcast_to(told_apart | (np.abs(centre) <= 1e-12), estimate.shape)
    half = _half_widths(stderr, share, n - 2, p, method)
    return _Fits(estimate, half, sd, stderr, lag, known & (n >= FEWEST_UNITS))


def _half_widths(stderr: Floats, share: Floats, dof: int, p: float, method: Method) -> Floats:
    """Half-widths of the look's intervals; ``1 / share`` is the units' worth of information."""
    if dof < 1:
        return np.full_like(stderr, math.inf)
    if method == "group-sequential":
        return stderr * float(stdtrit(dof, 1 - p / 2))
    r = 1 + 1 / share
    K = (np.sqrt(r) / p) ** (2 / (dof + 1))
    width = np.sqrt(dof * (K - 1) / np.where(r > K, 1 - K / r, 1.0))
    half: Floats = np.where(r > K, stderr * width, math.inf)
    return half


def _doubled(lag: Floats, n: int) -> Bools:
    """Where two pairs make a unit: residuals correlated, and enough pairs for units."""
    if n // 2 < FEWEST_UNITS:
        return np.zeros(lag.shape, dtype=np.bool_)
    found: Bools = lag > 2 / math.sqrt(n)
    return found


def _two_by_two(values: Floats) -> Floats:
    """Means of adjacent pairs along the second axis; an odd last one is left out."""
    whole = values[:, : values.shape[1] // 2 * 2]
    means: Floats = 0.5 * (whole[:, ::2] + whole[:, 1::2])
    return means


def _replace(fields: dict[str, Floats], where: Bools, fit: _Fits, p: float) -> None:
    """Put the fit of two-pair units in the place of the pairs' own."""
    values = {
        "estimate": fit.estimate,
        "lower": fit.estimate - fit.half,
        "upper": fit.estimate + fit.half,
        "sd": fit.sd,
        "stderr": fit.stderr,
        "autocorrelation": fit.autocorrelation,
        "nominal_p": np.full(fit.estimate.shape, p),
        "known": fit.known,
    }
    for name, value in values.items():
        fields[name] = np.where(where, value, fields[name])


def _repeat(fields: dict[str, Floats], where: Bools, d: Floats, p: float) -> None:
    """Axes that repeat exactly: the range of the data is their interval."""
    if not where.any():
        return
    values = {
        "estimate": np.median(d, axis=1),
        "lower": d.min(axis=1),
        "upper": d.max(axis=1),
        "sd": d.std(axis=1),
        "nominal_p": np.full(where.shape, p),
        "known": np.ones(where.shape, dtype=np.bool_),
    }
    for name, value in values.items():
        fields[name] = np.where(where, value, fields[name])
