"""How sure each look must be, so that all looks together err in at most 5 % of runs.

Planned looks spend the error by a fixed rule (Lan & DeMets, Biometrika 70, 1983): after n of N
pairs .05 x (n/N)^1.5 is spent. The boundary of each look follows from the joint normal distribution
of the looks by numerical integration (Armitage, McPherson & Rowe, JRSS A 132, 1969; Jennison &
Turnbull, Group Sequential Methods, 2000, ch. 19), for any looks and any maximum.

Unplanned looks and extensions use the anytime-valid t-mixture confidence sequence instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

ALPHA = 0.05
"""Two-sided error of a whole run."""

SPENDING_POWER = 1.5
"""Between Pocock's even spending (1) and O'Brien-Fleming's late one (about 3)."""

PRINTED: dict[tuple[int, ...], tuple[float, ...]] = {
    (6, 9, 13, 18, 25, 40): (0.0029, 0.0034, 0.0056, 0.0088, 0.0151, 0.0348),
}
"""The default looks' nominal p, rounded to four decimals as published, and used as printed."""

NODES_PER_STEP = 8
"""Quadrature nodes to each standard deviation of the way to the next look (half the region)."""

Method = Literal["group-sequential", "anytime"]
Floats = NDArray[np.float64]


def nominal_p(looks: Sequence[int], index: int, method: Method = "group-sequential") -> float:
    """Two-sided nominal p of one look: its interval's level is one minus this.

    Args:
        looks: numbers of units (pairs, or means of two pairs) at the looks, not falling.
        index: which look.
        method: an anytime-valid sequence has the whole error at every look.
    """
    if method == "anytime":
        return ALPHA
    distinct = tuple(sorted(set(looks)))
    return nominal_ps(distinct)[distinct.index(looks[index])]


@lru_cache(maxsize=256)
def nominal_ps(looks: tuple[int, ...]) -> tuple[float, ...]:
    """Two-sided nominal p of each look: as printed for the default, computed for any other plan.

    Raises:
        ValueError: no looks, or looks that do not rise from at least 1.
    """
    if not looks or looks[0] < 1 or any(b <= a for a, b in itertools.pairwise(looks)):
        raise ValueError(f"looks must rise from at least 1 pair; got {looks}")
    return PRINTED.get(looks) or computed_ps(looks)


def spent(n: int, maximum: int) -> float:
    """Error spent by the look at n of ``maximum`` units: .05 x (n/N)^1.5."""
    share: float = (n / maximum) ** SPENDING_POWER
    return ALPHA * share


def computed_ps(looks: tuple[int, ...]) -> tuple[float, ...]:
    """Two-sided nominal p of each look from the spending rule, by numerical integration."""
    times = [n / looks[-1] for n in looks]
    cumulative = [spent(n, looks[-1]) for n in looks]
    bounds = [_first_bound(cumulative[0], times[0])]
    nodes, density = _first_density(bounds[0], times[0], _step(times, 0))
    for k in range(1, len(looks)):
        sd = math.sqrt(times[k] - times[k - 1])
        bounds.append(_bound(nodes, density, sd, cumulative[k] - cumulative[k - 1]))
        if k + 1 < len(looks):
            nodes, density = _advance(nodes, density, sd, bounds[k], _step(times, k))
    return tuple(float(2 * ndtr(-b / math.sqrt(t))) for b, t in zip(bounds, times, strict=True))


def t_mixture_p(t: float, dof: int, information: float, g: float = 1.0) -> float:
    """Anytime-valid p of a t statistic: one over the mixture likelihood ratio, at most 1.

    The effect over the noise has a normal prior of variance ``g``; the ratio is invariant to scale
    and to the fitted order effect (Lai, Ann. Statist. 4, 1976; Lindon et al., arXiv:2210.08589).

    Args:
        t: estimate minus shift, over its standard error.
        dof: degrees of freedom of the noise.
        information: (noise sd / standard error) squared; the number of units in a balanced design.
        g: prior variance of (effect / noise sd).
    """
    r = 1 + information * g
    y = t * t / dof
    log_ratio = 0.5 * (dof + 1) * (math.log1p(y) - math.log1p(y / r)) - 0.5 * math.log(r)
    return min(1.0, math.exp(-log_ratio))


def t_mixture_half_width(
    stderr: float, dof: int, information: float, alpha: float = ALPHA, g: float = 1.0
) -> float:
    """Half-width of the t-mixture confidence sequence; infinite where too little is known.

    With dof = n - 1 and stderr = sd / sqrt(n) it is sd x sqrt((n-1) x / n), x = (K-1) / (1 - K/r),
    r = 1 + n g, K = (sqrt(r)/alpha)^(2/n); a fitted order effect takes one degree of freedom more.
    """
    r = 1 + information * g
    K = (math.sqrt(r) / alpha) ** (2 / (dof + 1))
    if r <= K:
        return math.inf
    return stderr * math.sqrt(dof * (K - 1) / (1 - K / r))


def _first_bound(p: float, time: float) -> float:
    return _bisect(lambda b: float(2 * ndtr(-b / math.sqrt(time))) - p, 40 * math.sqrt(time))


def _first_density(bound: float, time: float, step: float) -> tuple[Floats, Floats]:
    """Quadrature nodes inside the first bound, and density times weight there."""
    nodes, weights = _nodes(bound, step)
    density = np.exp(-0.5 * nodes**2 / time) / math.sqrt(2 * math.pi * time)
    return nodes, density * weights


def _advance(
    nodes: Floats, density: Floats, sd: float, bound: float, step: float
) -> tuple[Floats, Floats]:
    """The density of those that have not crossed, carried on to the next look."""
    following, weights = _nodes(bound, step)
    z = (following[:, None] - nodes[None, :]) / sd
    kernel = np.exp(-0.5 * z * z) / (sd * math.sqrt(2 * math.pi))
    carried: Floats = (kernel @ density) * weights
    return following, carried


def _bound(nodes: Floats, density: Floats, sd: float, increment: float) -> float:
    """The bound that is crossed with probability ``increment`` by those that have not before."""

    def excess(b: float) -> float:
        crossing = ndtr((nodes - b) / sd) + ndtr((-b - nodes) / sd)
        return float(crossing @ density) - increment

    return _bisect(excess, float(nodes[-1]) + 40 * sd)


def _bisect(excess: Callable[[float], float], high: float) -> float:
    """Root of a falling function on (0, high), to double precision."""
    low = 0.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return 0.5 * (low + high)


def _step(times: Sequence[float], k: int) -> float:
    """Standard deviation of the way from look k to the next, which the nodes must resolve."""
    return math.sqrt(times[min(k + 1, len(times) - 1)] - times[k]) if k + 1 < len(times) else 1.0


def _nodes(bound: float, step: float) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [-bound, bound], several to each step."""
    count = min(1024, max(96, math.ceil(NODES_PER_STEP * bound / step)))
    x, w = _legendre(count)
    return x * bound, w * bound


@lru_cache(maxsize=64)
def _legendre(count: int) -> tuple[Floats, Floats]:
    x, w = np.polynomial.legendre.leggauss(count)
    return np.asarray(x, dtype=np.float64), np.asarray(w, dtype=np.float64)
