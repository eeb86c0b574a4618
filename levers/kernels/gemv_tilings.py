"""How the decode step's products are cut: a fixed table by shape, and a rule for other shapes.

Nothing is tuned at run time: a timed path that searches is measured while it searches. The table
was reasoned from bytes (below); that of one row is what ``benchmarks/decode_gemv.py`` measured.

One H200 has 132 SMs, 4.3 TB/s and about 0.7 us from memory: 23 KB must be under way on each SM. A
program of one row has ``rows x inputs`` weights (twice that with SwiGLU) in its first tile, in
registers, and ``stages - 1`` more in shared memory; the grids below put 2 to 6 programs on an SM,
so that 30 to 140 KB are asked for at once. With few rows a stage is ``rows x inputs`` of the
product's tile in shared memory, 8 to 32 KB, three or more deep; where the outputs alone make fewer
than some 120 programs, the inputs are split as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

LARGEST_ROWS = 32
"""Rows of activations that the kernels take: more is a matrix product like any other."""

LARGEST_NORMED_ROWS = 4
"""Rows up to which the norm is computed by every program of the product behind it. At N rows each
program reads 4 N C bytes of stream and addend from the second-level cache, beside 2 C bytes for
each weight row of its own: at N = 4 and 32 weight rows a quarter more, at N = 16 as much again."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """One launch's configuration.

    Attributes:
        rows: output rows of a program.
        inputs: inputs of a tile, a power of two.
        warps: of a program.
        stages: tiles under way, that in use included.
        splits: programs that share the inputs of an output row.
        dot: ``tl.dot`` also for one row.
        early: programmatic dependent launch: the program starts, and loads its first weights,
            while the launch before it ends.
    """

    rows: int
    inputs: int
    warps: int = 4
    stages: int = 3
    splits: int = 1
    dot: bool = False
    early: bool = False

    def __str__(self) -> str:
        words = f"{self.rows}x{self.inputs} w{self.warps} s{self.stages} /{self.splits}"
        return words + (" dot" if self.dot else "") + (" early" if self.early else "")


ONE_ROW: Mapping[tuple[int, int, bool], Tiling] = {
    (4096, 1024, False): Tiling(8, 1024),
    (1024, 2048, False): Tiling(4, 2048),
    (3072, 1024, True): Tiling(4, 1024),
    (1024, 3072, False): Tiling(2, 1024, warps=2, stages=5),
    (6144, 2560, False): Tiling(4, 512, warps=2, stages=1),
    (2560, 4096, False): Tiling(2, 2048),
    (9728, 2560, True): Tiling(4, 512, warps=2, stages=5),
    (2560, 9728, False): Tiling(4, 512, stages=4),
}
"""By outputs, inputs and SwiGLU: the four products of Qwen3-0.6B, then of Qwen3-4B; the best of a
sweep on an H200 (``docs/results/h200/decode_gemv.json``)."""

FEW_ROWS: Mapping[tuple[int, int, bool], Tiling] = {
    (4096, 1024, False): Tiling(32, 256, stages=4),
    (1024, 2048, False): Tiling(32, 256, stages=3, splits=4),
    (3072, 1024, True): Tiling(16, 256, stages=4),
    (1024, 3072, False): Tiling(32, 256, stages=4, splits=4),
    (6144, 2560, False): Tiling(32, 256, stages=4),
    (2560, 4096, False): Tiling(32, 256, stages=4, splits=2),
    (9728, 2560, True): Tiling(32, 128, stages=5),
    (2560, 9728, False): Tiling(32, 256, stages=4, splits=4),
}
"""The same for 2 to 16 rows."""

MANY_ROWS: Mapping[tuple[int, int, bool], Tiling] = {**FEW_ROWS}
"""The same for 17 to 32 rows, whose activations take twice the room in shared memory."""


def tiling(count: int, outputs: int, inputs: int, *, swiglu: bool, norm: bool) -> Tiling:
    """The configuration of a product of ``count`` rows.

    A product that is normed or gated is never split over its inputs. Stream and addend of a normed
    one lie in shared memory and registers beside the weights: its tiles are at most 128 inputs wide
    and 4 stages deep.
    """
    table = ONE_ROW if count == 1 else FEW_ROWS if count <= 16 else MANY_ROWS
    found = table.get((outputs, inputs, swiglu))
    if found is None:
        found = _one_row_rule(outputs, inputs) if count == 1 else _few_rows_rule(outputs, inputs)
    if norm or swiglu:
        found = replace(found, splits=1)
    if norm and count > 1:
        return replace(found, inputs=min(128, found.inputs), stages=min(4, found.stages))
    return found


def _power_at_most(value: int) -> int:
    return 1 << (value.bit_length() - 1)


def _one_row_rule(outputs: int, inputs: int) -> Tiling:
    """About 16 KB of weights a program, and some 250 programs at least where there are rows."""
    tile = min(1024, max(32, _power_at_most(inputs)))
    return Tiling(rows=8 if outputs >= 4096 else 4, inputs=tile, warps=4 if tile >= 512 else 1)


def _few_rows_rule(outputs: int, inputs: int) -> Tiling:
    """16 KB a stage, and the inputs split until there are some 120 programs."""
    tile = min(256, max(16, _power_at_most(inputs)))
    programs, steps = -(-outputs // 32), -(-inputs // tile)
    splits = max(1, min(8, steps, -(-120 // programs)))
    return Tiling(rows=32, inputs=tile, stages=4, splits=splits)


def candidates(count: int, outputs: int, inputs: int, *, swiglu: bool) -> Iterator[Tiling]:
    """What a sweep on a device tries, the table's own choice first.

    Programs of one row hold 16 to 128 weights a thread; grids have at least 64 programs.
    """
    own = tiling(count, outputs, inputs, swiglu=swiglu, norm=False)
    yield own
    halves = 2 if swiglu else 1
    splits = (1,) if swiglu else (1, 2, 4)
    for one in _one_row_grid(splits) if count == 1 else _few_rows_grid(splits):
        weights = halves * one.rows * one.inputs
        programs = -(-outputs // one.rows) * one.splits
        each = weights / (32 * one.warps)
        fits = one.inputs <= inputs and 64 <= programs <= 32768
        if one != own and fits and (count > 1 or one.dot or 16 <= each <= 128):
            yield one


def _one_row_grid(splits: tuple[int, ...]) -> Iterator[Tiling]:
    """The kernel of one row, and that of several with 15 rows of padding."""
    yield from (Tiling(16, 256, 4, 4, pieces, dot=True) for pieces in splits)
    for rows, inputs, warps in (
        (2, 1024, 2),
        (2, 2048, 4),
        (4, 512, 2),
        (4, 512, 4),
        (4, 1024, 4),
        (4, 2048, 8),
        (8, 512, 4),
        (8, 1024, 8),
        (16, 256, 4),
        (16, 512, 8),
    ):
        for stages in (1, 3, 5):
            yield Tiling(rows, inputs, warps, stages)


def _few_rows_grid(splits: tuple[int, ...]) -> Iterator[Tiling]:
    for rows, inputs, warps, stages in (
        (16, 128, 2, 6),
        (16, 256, 4, 4),
        (16, 512, 4, 3),
        (32, 128, 4, 5),
        (32, 256, 4, 3),
        (32, 256, 4, 5),
        (64, 128, 4, 4),
        (64, 256, 8, 3),
    ):
        for pieces in splits:
            yield Tiling(rows, inputs, warps, stages, pieces)
