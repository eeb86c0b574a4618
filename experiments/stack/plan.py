"""Which sets of levers a stack measures, and in which order; pure.

Each block holds every row once, in an order drawn from the seed; every second block is the mirror
of the one before it. Over such a pair of blocks a drift that is linear in time falls on every row
alike, so that it cancels in each difference of rows.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

from experiments.spec import LeverSetting
from experiments.stack.records import Overlap, Part, Row
from levers.base import Lever

FEWEST_BLOCKS = 4
"""An effect, a drift and two degrees of freedom for the noise."""

LOSS_LIMIT = 0.25
"""Largest share of blocks that may be lost and measured again."""


class Rows:
    """The rows of a stack as they are asked for; a set that was asked for is found again."""

    def __init__(self) -> None:
        self._parts: dict[tuple[LeverSetting, ...], list[Part]] = {}

    def add(self, levers: Sequence[LeverSetting], part: Part) -> int:
        """The index of the row with these levers."""
        key = tuple(levers)
        parts = self._parts.setdefault(key, [])
        if part not in parts:
            parts.append(part)
        return list(self._parts).index(key)

    def all(self) -> tuple[Row, ...]:
        """The rows in the order in which they were first asked for."""
        found = enumerate(self._parts.items())
        return tuple(Row(index=i, levers=key, parts=tuple(parts)) for i, (key, parts) in found)


def waterfall(levers: Sequence[LeverSetting], rows: Rows) -> None:
    """Rows 0..n: nothing, then one lever more in each."""
    for count in range(len(levers) + 1):
        rows.add(levers[:count], "waterfall")


def whole(levers: Sequence[LeverSetting], rows: Rows) -> None:
    """Nothing, and all levers: what ships, without the steps between."""
    rows.add((), "waterfall")
    rows.add(levers, "waterfall")


def leave_one_out(levers: Sequence[LeverSetting], rows: Rows) -> tuple[int, ...]:
    """Per lever, the row of the whole stack without it."""
    return tuple(
        rows.add([*levers[:i], *levers[i + 1 :]], "leave-one-out") for i in range(len(levers))
    )


def overlaps(
    levers: Sequence[LeverSetting], declared: Sequence[Lever], rows: Rows
) -> tuple[Overlap, ...]:
    """The pairs that share a site, or of which one names the other, with their rows."""
    found = []
    for (one, first), (other, second) in itertools.combinations(
        list(zip(levers, declared, strict=True)), 2
    ):
        why = overlap(first, second)
        if why:
            needed: tuple[list[LeverSetting], ...] = ([], [one], [other], [one, other])
            neither, alone, beside, both = (rows.add(part, "pair") for part in needed)
            names = (one.lever, other.lever)
            found.append(Overlap(levers=names, why=why, rows=(neither, alone, beside, both)))
    return tuple(found)


def overlap(one: Lever, other: Lever) -> str:
    """Why two levers may not be independent; empty where nothing says so."""
    shared = sorted(set(one.touches) & set(other.touches))
    if shared:
        return f"both change {', '.join(shared)}"
    for first, second in ((one, other), (other, one)):
        if second.name in first.supersedes:
            return f"{first.name} supersedes {second.name}"
        if second.name in first.composes_with:
            return f"{first.name} composes with {second.name}"
    return ""


def order(seed: int, block: int, rows: int) -> tuple[int, ...]:
    """The order of the rows in a block: drawn for the even ones, mirrored for the odd."""
    drawn = sorted(range(rows), key=lambda i: _draw(seed, block // 2, i))
    return tuple(drawn if block % 2 == 0 else reversed(drawn))


def most_lost(blocks: int) -> int:
    """How many blocks may be lost and measured again."""
    return max(1, int(blocks * LOSS_LIMIT))


def _draw(seed: int, pair: int, row: int) -> str:
    return hashlib.sha256(f"{seed}/stack/{pair}/{row}".encode()).hexdigest()


class Schedule:
    """Which block is measured next, given what is on disk.

    A block is whole when each row that can run has a sample and none was lost; a lost one is
    measured again under a number of its own, in the lost one's order.

    Args:
        seed: what the orders are drawn from.
        blocks: planned blocks.
        rows: number of rows.
    """

    def __init__(self, seed: int, blocks: int, rows: int) -> None:
        self._seed, self._blocks, self._rows = seed, blocks, rows

    def slots(self, lost: Sequence[int]) -> dict[int, int]:
        """Per block number, the planned block whose place it takes.

        Args:
            lost: numbers of the lost blocks, in the order in which they were lost.
        """
        slots = {number: number for number in range(self._blocks)}
        for extra, number in enumerate(lost[: most_lost(self._blocks)]):
            slots[self._blocks + extra] = slots[number]
        return slots

    def order(self, slot: int) -> tuple[int, ...]:
        """The order of the rows in the block of that place."""
        return order(self._seed, slot, self._rows)

    def left(self, whole: Sequence[int], lost: Sequence[int]) -> list[tuple[int, int]]:
        """The blocks still to measure: number and place."""
        done = {*whole, *lost}
        return [(n, slot) for n, slot in sorted(self.slots(lost).items()) if n not in done]

    def counting(self, whole: Sequence[int], lost: Sequence[int]) -> tuple[int, ...]:
        """The whole blocks whose mirrored block is whole too, in the order of time."""
        slots = self.slots(lost)
        have = {slots[number] for number in whole}
        return tuple(number for number in sorted(whole) if slots[number] ^ 1 in have)

    def position(self, slot: int, row: int) -> float:
        """The place of a row in its block, from 0 to 1; the time axis of a linear drift."""
        return self.order(slot).index(row) / max(1, self._rows - 1)
