"""From the samples of a stack to what each lever brings; pure.

A contrast is a weighted sum of log values inside each block: row k against row k - 1 is a gain, the
whole stack against the whole without one lever is what that lever still brings at the end, and both
- first - second + neither is how far two levers are from independent. Each block gives one value;
the interval is the t interval of :mod:`experiments.stats`, with the contrast of the places in the
block as covariate. Blocks come in mirrored pairs, so that this covariate is balanced, the estimate
is the plain mean over the blocks, and the log gains add up to the log of the total.

Where rows run in turns with a process without levers, the log value of a row is its log ratio to
that process: what slowed both is in neither. Every contrast is then one of such ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.records import Effect, Sample
from experiments.stack.plan import FEWEST_BLOCKS, Schedule
from experiments.stack.records import Analysis, Contrast, RowEvidence, StackRecord
from experiments.stats import Floats, effect_of, p_of_shift
from levers.policy import Axis

PAIRED, CROSSED = (-1, 1), (1, -1, -1, 1)
"""Signs of a ratio of two rows, and of an interaction (neither, first, second, both)."""


def analysed(record: StackRecord) -> Analysis:
    """All tables of a stack from its samples; empty where too few blocks are whole."""
    return _Blocks(record).analysis()


def whole_blocks(
    evidence: Sequence[RowEvidence], *, interleaved: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of the blocks in which each row that can run has its samples, and of lost ones.

    Lost blocks come in the order in which they were lost.
    """
    lost = sorted({one.pair for row in evidence for one in row.lost})
    living = [row for row in evidence if not row.failures]
    if interleaved:
        own = [row for row in living if row.row.arm != "ref"]
        arms = [arm for row in own for arm in (row.of("ref"), row.of(row.row.arm))]
        have = [set(arm) for arm in arms]
    else:
        have = [{sample.pair for sample in row.samples} for row in living]
    whole = set.intersection(*have) - set(lost) if have else set()
    return tuple(sorted(whole)), tuple(lost)


def holm_p(ps: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p-values of one family (Holm, 1979), each at most 1."""
    adjusted = [1.0] * len(ps)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = largest
    return tuple(adjusted)


class _Blocks:
    """The blocks of one record that count, and the contrasts over them."""

    def __init__(self, record: StackRecord) -> None:
        self.record, self.spec = record, record.spec
        self.evidence = {one.row.index: one for one in record.evidence}
        self.schedule = Schedule(self.spec.seed, self.spec.blocks, len(self.spec.rows))
        whole, lost = whole_blocks(record.evidence, interleaved=self.spec.interleaved)
        self.slots = self.schedule.slots(lost)
        self.numbers = self.schedule.counting(whole, lost)

    def analysis(self) -> Analysis:
        """All tables."""
        if len(self.numbers) < FEWEST_BLOCKS:
            return Analysis()
        spec = self.spec
        steps = range(1, spec.whole + 1) if spec.stepwise else ()
        gains = [self._ratio(spec.levers[k - 1].lever, k - 1, k) for k in steps]
        left = [
            self._ratio(one.lever, row, spec.whole)
            for one, row in zip(spec.levers, spec.left_out, strict=False)
        ]
        crossed = [self._contrast(" x ".join(o.levers), o.rows, CROSSED) for o in spec.overlaps]
        found = [self._log_gain(one) for one in gains]
        known = [one for one in found if one is not None]
        return Analysis(
            blocks=self.numbers,
            values=tuple(self._medians(self.evidence[row.index]) for row in spec.rows),
            gains=self._judged(gains),
            total=self._total(),
            log_sum=math.fsum(known) if found and len(known) == len(found) else None,
            left_out=self._judged(left),
            interactions=self._judged(crossed),
            oracle=self._against_oracle(),
        )

    def _total(self) -> Contrast | None:
        """All levers against none, where there is any."""
        ends = (0, self.spec.whole)
        return self._contrast("the whole stack", ends, PAIRED) if self.spec.levers else None

    def _against_oracle(self) -> tuple[Contrast, ...]:
        """The row without levers and the whole, each against the oracle of the same blocks."""
        row = self.spec.oracle
        if row is None:
            return ()
        named = (("no lever", 0), ("the whole stack", self.spec.whole))
        return tuple(self._contrast(name, (row.index, mine), PAIRED) for name, mine in named)

    def _log_gain(self, gain: Contrast) -> float | None:
        effect = gain.effect(self.spec.axis)
        return None if effect is None else effect.estimate

    def _ratio(self, lever: str, without: int, beside: int) -> Contrast:
        """A row against the row without the lever; inert where its sites ran the same plan."""
        found = self._contrast(lever, (without, beside), PAIRED)
        inert = not found.missing and self._plans(lever, without) == self._plans(lever, beside)
        return found.model_copy(update={"inert": inert})

    def _plans(self, lever: str, row: int) -> Mapping[str, str]:
        plans = self.evidence[row].plans if row in self.evidence else {}
        return {name: plan for name, plan in plans.items() if name.startswith(f"{lever}: ")}

    def _contrast(self, name: str, rows: tuple[int, ...], signs: tuple[int, ...]) -> Contrast:
        missing = "; ".join(filter(None, (self._why_missing(row) for row in dict.fromkeys(rows))))
        effects: tuple[Effect, ...] = ()
        if not missing:
            found = (self._effect(axis, rows, signs) for axis in self.record.axes)
            effects = tuple(one for one in found if one is not None)
        return Contrast(name=name, rows=rows, signs=signs, effects=effects, missing=missing)

    def _why_missing(self, row: int) -> str:
        one = self.evidence.get(row)
        if one is None:
            return f"row {row} was not measured"
        return f"{one.row.name}: {one.failed}" if one.failed else ""

    def _effect(self, axis: Axis, rows: tuple[int, ...], signs: tuple[int, ...]) -> Effect | None:
        """The effect on one axis, or None where a value has no logarithm."""
        d = np.zeros(len(self.numbers))
        places = np.zeros(len(self.numbers))
        for row, sign in zip(rows, signs, strict=True):
            logs = self._logs(row, axis.name)
            if logs is None:
                return None
            d += axis.sign * sign * logs
            slots = (self.slots[number] for number in self.numbers)
            places += [sign * self.schedule.position(slot, row) for slot in slots]
        return effect_of(axis.name, d, places, (len(d),), 0)

    def _logs(self, row: int, axis: str) -> Floats | None:
        """A row's log values of an axis in the blocks that count; None where one has no log."""
        one = self.evidence[row]
        if not self.spec.interleaved:
            return self._log(one.of(one.row.arm), axis)
        if one.row.arm == "ref":
            return np.zeros(len(self.numbers))
        mine, beside = self._log(one.of(one.row.arm), axis), self._log(one.of("ref"), axis)
        return None if mine is None or beside is None else mine - beside

    def _log(self, samples: Mapping[int, Sample], axis: str) -> Floats | None:
        values = np.array([samples[n].values.get(axis, math.nan) for n in self.numbers])
        good = bool(np.isfinite(values).all() and (values > 0).all())
        return np.log(values) if good else None

    def _medians(self, one: RowEvidence) -> dict[str, float]:
        """A row's values over the blocks that count; none where it failed.

        Medians; where rows run in turns with the reference, the reference's median times the row's
        mean ratio to it, so that values and gains say the same.
        """
        if one.failures:
            return {}
        found = {}
        for axis in self.record.axes:
            logs = self._logs(one.row.index, axis.name)
            seen = self._reference(axis.name) if self.spec.interleaved else logs
            if logs is not None and seen is not None:
                shift = float(logs.mean()) if self.spec.interleaved else 0.0
                found[axis.name] = math.exp(float(np.median(seen)) + shift)
        return found

    def _reference(self, axis: str) -> Floats | None:
        """The log values of all processes without levers in the blocks that count."""
        rows = [one for one in self.evidence.values() if one.row.arm != "ref" and not one.failures]
        found = [self._log(one.of("ref"), axis) for one in rows]
        good = [one for one in found if one is not None]
        return np.concatenate(good) if good else None

    def _judged(self, contrasts: Sequence[Contrast]) -> tuple[Contrast, ...]:
        """The contrasts of one table with the p of "no effect", adjusted over the table."""
        effects = [one.effect(self.spec.axis) for one in contrasts]
        ps = iter(holm_p([p_of_shift(one, 0.0) for one in effects if one is not None]))
        return tuple(
            one if effect is None else one.model_copy(update={"p": next(ps)})
            for one, effect in zip(contrasts, effects, strict=True)
        )
