"""The order of all runs of an A/B, fixed before the first sample: blocks of four pairs.

Two pairs of a block run the reference first and two the candidate, in an order drawn from the seed
(random permuted blocks): a position effect, a ramp or a slow machine state then falls on both arms
alike, and the order enters the analysis as a covariate. Where a target needs an oracle, each block
starts with one oracle pair, in an order of its own.

The draw is a hash of seed, block and place, so that it is the same in every version of Python and a
plan can be continued at any pair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal

from experiments.records import Arm, LostPair, Sample
from experiments.values import Value, digest_of

BLOCK_PAIRS = 4
"""Pairs in a block: the fewest that balance the order and leave it random (6 arrangements)."""

LOSS_LIMIT = 0.2
"""Largest share of lost pairs; more make the run invalid (design: statistics)."""

Order = Literal[1, -1]
"""+1: the reference runs first in its pair; -1: second."""


class Run(Value):
    """One process to start: an arm of a pair, at its place in the pair."""

    pair: int
    position: Literal[0, 1]
    arm: Arm


class Step(Value):
    """Two runs, back to back: a pair of the effect, or the oracle pair of a block.

    ``pair`` of an oracle step is the index of the block's first pair, as in its samples.
    """

    kind: Literal["pair", "oracle"]
    pair: int
    runs: tuple[Run, Run]

    @property
    def block(self) -> int:
        """Index of the block, from 0."""
        return self.pair // BLOCK_PAIRS


class Plan(Value):
    """All steps of a run up to its last planned look.

    Attributes:
        seed: what the orders are drawn from.
        pairs: number of valid pairs of the last planned look.
        oracle: whether each block starts with an oracle pair.
    """

    seed: int
    pairs: int
    oracle: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """The planned steps in order, without replacements of lost pairs."""
        return tuple(self._steps(range(self.pairs)))

    @property
    def runs(self) -> tuple[Run, ...]:
        """The planned runs in order."""
        return tuple(run for step in self.steps for run in step.runs)

    @property
    def plan_digest(self) -> str:
        """Digest of the runs in order, stored before the first sample."""
        return digest_of("\n".join(f"{r.pair} {r.position} {r.arm}" for r in self.runs))

    @property
    def most_lost(self) -> int:
        """How many pairs may be lost and replaced before the run is invalid."""
        return int(self.pairs * LOSS_LIMIT / (1 - LOSS_LIMIT) + 1e-9)

    def order(self, pair: int) -> Order:
        """+1 where the reference runs first in this pair, -1 where the candidate does."""
        block, place = divmod(pair, BLOCK_PAIRS)
        ranked = sorted(range(BLOCK_PAIRS), key=lambda i: _draw(self.seed, "pair", block, i))
        return 1 if ranked.index(place) < BLOCK_PAIRS // 2 else -1

    def oracle_order(self, block: int) -> Order:
        """+1 where the reference runs first in the block's oracle pair."""
        return 1 if int(_draw(self.seed, "oracle", block, 0), 16) % 2 else -1

    def replaced_by(self, lost_pairs: Sequence[int]) -> tuple[tuple[int, Order], ...]:
        """Further pairs at the end of the plan, one for each lost pair, in the lost one's order.

        ``lost_pairs`` are distinct pair indices in the order in which they were lost; a replacement
        that is lost too is replaced in turn. At most :attr:`most_lost` are given.
        """
        given: dict[int, Order] = {}
        for number, lost in enumerate(lost_pairs[: self.most_lost]):
            given[self.pairs + number] = given.get(lost, self.order(lost))
        return tuple(given.items())

    def _steps(self, pairs: Sequence[int] | range) -> Iterator[Step]:
        for pair in pairs:
            yield from self.steps_of(pair, self.order(pair))

    def steps_of(self, pair: int, order: Order) -> Iterator[Step]:
        """The steps that this pair brings: the block's oracle pair where one starts, and itself."""
        if self.oracle and pair % BLOCK_PAIRS == 0:
            yield _step("oracle", pair, self.oracle_order(pair // BLOCK_PAIRS))
        yield _step("pair", pair, order)


def make_plan(seed: int, pairs: int, oracle: bool = False) -> Plan:
    """The plan of ``pairs`` pairs.

    Raises:
        ValueError: fewer than three pairs: an order effect and a spread cannot both be estimated.
    """
    if pairs < 3:
        raise ValueError(f"{pairs} pairs cannot give an interval; at least 3 are needed")
    return Plan(seed=seed, pairs=pairs, oracle=oracle)


def remaining(plan: Plan, samples: Sequence[Sample], lost: Sequence[LostPair]) -> tuple[Step, ...]:
    """The steps still to do, in order, given what is on disk: planned ones, then replacements.

    A step of which only one side is on disk is done again as a whole, since a pair must be adjacent
    in time; of two samples of the same run the later one counts. A lost oracle pair is not
    replaced: the next block brings another.
    """
    have = {(sample.pair, sample.arm) for sample in samples}
    lost_pairs = tuple(dict.fromkeys(one.pair for one in lost if one.arm in ("ref", "cand")))
    gone = {("pair", pair) for pair in lost_pairs}
    gone |= {("oracle", one.pair) for one in lost if one.arm in ("oracle", "oracle-ref")}
    steps = list(plan.steps)
    for pair, order in plan.replaced_by(lost_pairs):
        steps.extend(plan.steps_of(pair, order))
    return tuple(
        step
        for step in steps
        if (step.kind, step.pair) not in gone
        and any((run.pair, run.arm) not in have for run in step.runs)
    )


def _step(kind: Literal["pair", "oracle"], pair: int, order: Order) -> Step:
    arms: tuple[Arm, Arm] = ("ref", "cand") if kind == "pair" else ("oracle-ref", "oracle")
    first, second = arms if order == 1 else arms[::-1]
    return Step(
        kind=kind,
        pair=pair,
        runs=(Run(pair=pair, position=0, arm=first), Run(pair=pair, position=1, arm=second)),
    )


def _draw(seed: int, what: str, block: int, place: int) -> str:
    return hashlib.sha256(f"{seed}/{what}/{block}/{place}".encode()).hexdigest()
