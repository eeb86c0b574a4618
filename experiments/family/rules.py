"""The rules of a selection among several settings of one lever; pure functions of the evidence.

Each setting is read by the rules of an ordinary run, at a stricter level. A look of the selection
spends its share of the error, .05 x (share of the looks up to here - share before), so that the
sum over the looks is .05 whatever their dependence. The shares of the settings follow Holm: with m
settings of which r are dropped, each of the others is read at level / (m - r). Over all looks and
settings, the chance to drop even one that is worth shipping is at most .05.

Proof: p(k) = min over looks of p(k, look) / share(look) is a valid p of "k is worth shipping", by
Bonferroni over the looks, and Holm (1979) over these p needs no independence of the settings, which
share their reference. A setting that is dropped leaves the schedule; had it stayed, its p could
only have fallen, so the rest is as in the full procedure.

What is dropped is no worse decided than by a run of its own. What survives is only a candidate: its
verdict comes from fresh pairs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from scipy.special import stdtrit

from experiments.decide.evidence import Ceiling
from experiments.decide.order import decide
from experiments.records import Decision, Effect, Look, Outcome
from experiments.replay import evidence_of, look_at
from experiments.run_record import RunRecord
from experiments.sequential import spent
from experiments.spec import DEFAULT_LOOKS

FAMILY_LOOKS = DEFAULT_LOOKS[:4]
"""Rounds at which settings may be dropped: beyond 18, two that are as good as each other would take
device time that the verdict needs."""

SURVIVES = (Outcome.DEFAULT_ON, Outcome.INCONCLUSIVE)
"""Readings of a setting that may still be worth shipping."""

Reading = Callable[[str, float], Decision | None]
"""The decision on a setting when it is read at this two-sided level; None leaves it open."""


def looks_of_family(pairs: int | None) -> tuple[int, ...]:
    """The looks of a selection in a run of at most ``pairs`` pairs."""
    last = FAMILY_LOOKS[-1] if pairs is None else min(pairs, FAMILY_LOOKS[-1])
    return (*(look for look in FAMILY_LOOKS if look < last), last)


def levels(looks: Sequence[int]) -> tuple[float, ...]:
    """The two-sided error that each look may spend; together they spend .05."""
    total = [0.0, *(spent(look, looks[-1]) for look in looks)]
    return tuple(after - before for before, after in itertools.pairwise(total))


def read_settings(
    due: Collection[str], family: int, dropped: int, level: float, read: Reading
) -> dict[str, Decision]:
    """The settings that a look decides, by Holm's steps.

    Args:
        due: the settings that reached this look.
        family: number of settings that the selection began with, failed ones included.
        dropped: how many of them are out already.
        level: what this look may spend over the family.
        read: reads one setting at a level.

    Returns:
        The decisions that stand; each one dropped makes the level of the others wider.
    """
    found: dict[str, Decision] = {}
    while True:
        out = sum(1 for one in found.values() if one.outcome not in SURVIVES)
        share = level / max(1, family - dropped - out)
        read_now = {name: read(name, share) for name in due if name not in found}
        new = {name: one for name, one in read_now.items() if one is not None}
        found |= new
        if not any(one.outcome not in SURVIVES for one in new.values()):
            return found


def decision_at(record: RunRecord, index: int, level: float) -> Decision | None:
    """The reading of one setting at a look of the selection, at this two-sided level."""
    look = look_at_level(record, index, level)
    if look is None:
        return None
    evidence = evidence_of(record, look)
    ceilings = tuple(_at_level(one, level) for one in evidence.ceilings)
    return decide(dataclasses.replace(evidence, ceilings=ceilings))


def look_at_level(record: RunRecord, index: int, level: float) -> Look | None:
    """A look whose intervals have this level; None where valid rounds are missing."""
    look = look_at(record, index)
    if look is None:
        return None
    effects = tuple(effect_at(effect, level) for effect in look.effects)
    return look.model_copy(update={"effects": effects})


def effect_at(effect: Effect, level: float) -> Effect:
    """The same effect with the interval of another level; one that repeats exactly keeps its own.

    Raises:
        ValueError: a confidence sequence, which a selection does not use.
    """
    if effect.kind == "sequence":
        raise ValueError("a selection has planned looks and no confidence sequence")
    if effect.kind == "deterministic":
        return effect.model_copy(update={"nominal_p": level})
    half = effect.stderr * float(stdtrit(effect.dof, 1 - level / 2))
    changed = {
        "nominal_p": level,
        "lower": effect.estimate - half,
        "upper": effect.estimate + half,
    }
    return effect.model_copy(update=changed)


def _at_level(one: Ceiling, level: float) -> Ceiling:
    effect = None if one.effect is None else effect_at(one.effect, level)
    return dataclasses.replace(one, effect=effect)


def score(look: Look | None, primaries: Collection[str]) -> float:
    """By what survivors are ordered: the mean log ratio over the primary axes."""
    effects = look.effects if look is not None else ()
    found = [effect.estimate for effect in effects if effect.axis in primaries]
    return sum(found) / len(found) if found else -math.inf


def winner(scores: Mapping[str, float]) -> str | None:
    """The survivor with the largest score; the first of those that are equal."""
    return max(scores, key=lambda name: scores[name]) if scores else None
