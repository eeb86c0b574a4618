"""What counts as a win on an axis, and what proves that there is none."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.records import Effect
from experiments.stats import holm, p_above, untrusted

FAILING = ("failing", "wanted")
"""States of an axis on which a win ships the lever."""

OPEN = (*FAILING, "undecided")
"""States of an axis on which a win still could."""


def proven_wins(family: Sequence[Effect], gain: float) -> tuple[Effect, ...]:
    """The wins that are proven among these axes, Holm over all of them.

    A win is an effect whose interval lies above zero with an estimate of at least ``gain``, the
    smallest gain worth keeping (a log ratio).
    """
    rejected = holm([p_above(effect, 0.0) / effect.nominal_p for effect in family], 1.0)
    both = zip(family, rejected, strict=True)
    won = (effect for effect, proven in both if proven and effect.lower > 0)
    return tuple(effect for effect in won if effect.estimate >= gain)


def without_win(effect: Effect, gain: float) -> bool:
    """Whether the axis is proven to gain less than is worth keeping."""
    return not untrusted(effect) and effect.upper < gain
