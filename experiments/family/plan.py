"""The order of a selection's rounds: the reference and each living setting once, back to back.

Rounds come in twos: an order drawn from the seed, and its reverse. Each setting then runs before
the reference as often as after it, a ramp falls on all alike, and the order enters each setting's
analysis as the covariate that it is in an ordinary pair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

REF = "ref"


def round_order(seed: int, number: int, living: Sequence[str]) -> tuple[str, ...]:
    """The arms of one round in the order in which they run.

    Args:
        seed: of the selection.
        number: index of the round, from 0.
        living: the settings still in the schedule.

    Returns:
        The settings and :data:`REF`, each once.
    """
    arms = [REF, *living]
    ordered = sorted(arms, key=lambda arm: _draw(seed, number // 2, arm))
    backwards = int(_draw(seed, number // 2, "first"), 16) % 2 ^ number % 2
    return tuple(reversed(ordered)) if backwards else tuple(ordered)


def _draw(seed: int, number: int, what: str) -> str:
    return hashlib.sha256(f"{seed}/family/{number}/{what}".encode()).hexdigest()
