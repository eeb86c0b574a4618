"""What a run can see, and what it would cost to see more: pairs for an effect, pairs to settle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from scipy.special import nctdtr, stdtrit

from experiments.records import Effect
from experiments.sequential import nominal_ps

MOST_PAIRS = 100_000
"""Above this many pairs a question counts as one that more pairs do not settle."""


def pairs_for_half_width(sd: float, half_width: float, p: float, unit_pairs: int = 1) -> int | None:
    """Pairs at which an interval of level 1 - p is as narrow as ``half_width`` (a log ratio).

    Args:
        sd: noise of a unit.
        half_width: what is asked for.
        p: two-sided nominal p of the look at which it is asked.
        unit_pairs: pairs in a unit.

    Returns:
        The number of pairs, or None where no reasonable number gives it.
    """
    if half_width <= 0:
        return None
    low, high = 3, MOST_PAIRS
    if _half_width(sd, high, p) > half_width:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if _half_width(sd, middle, p) <= half_width else (middle + 1, high)
        )
    return low * unit_pairs


def pairs_to_settle(effect: Effect, boundary: float, final_p: float) -> int | None:
    """Pairs in all at which the effect, if it stays where it is, is clear of ``boundary``.

    The level is that of the last look: more pairs mean a plan with a larger maximum.
    """
    distance = abs(effect.estimate - boundary)
    if effect.kind == "deterministic" or effect.sd == 0:
        return effect.units if distance > 0 else None
    return pairs_for_half_width(effect.sd, distance, final_p, effect.unit_pairs)


def power_at(looks: Sequence[int], effect_over_sd: float) -> tuple[float, ...]:
    """Chance that an effect is told from zero by each look, from the noncentral t of each look.

    Crossing at an earlier look and not at a later one is left out, so these are slightly low.
    """
    best, powers = 0.0, []
    for n, p in zip(looks, nominal_ps(tuple(looks)), strict=True):
        critical = float(stdtrit(n - 2, 1 - p / 2))
        crossed = 1 - float(nctdtr(n - 2, effect_over_sd * math.sqrt(n), critical))
        best = max(best, crossed)
        powers.append(best)
    return tuple(powers)


def expected_pairs(looks: Sequence[int], effect_over_sd: float) -> float:
    """Mean number of pairs until a look tells the effect from zero, or the plan ends."""
    powers = (0.0, *power_at(looks, effect_over_sd)[:-1], 1.0)
    return sum(n * (b - a) for n, (a, b) in zip(looks, itertools.pairwise(powers), strict=True))


def smallest_seen(looks: Sequence[int], sd: float, power: float = 0.8) -> float:
    """Smallest effect (log ratio) that the whole plan tells from zero with this power."""
    low, high = 0.0, 1.0
    while power_at(looks, high)[-1] < power:
        high *= 2
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if power_at(looks, middle)[-1] >= power else (middle, high)
    return high * sd


def _half_width(sd: float, units: int, p: float) -> float:
    return sd / math.sqrt(units) * float(stdtrit(units - 2, 1 - p / 2))
