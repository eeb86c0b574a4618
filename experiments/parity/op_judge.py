"""Which parity class the errors of a case allow (runs in the measured process).

Bit for bit equal is seen elsewhere; here a case is *lossless* (against fp64 truth the candidate's
error is no larger than the reference's, or within the spread of the reference's own orders),
*tolerated* (inside the policy's stated tolerance) or broken. Each arm is held against truth, never
arm against arm: a better sum differs from a worse one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from experiments.parity.bounds import beside, lossless, ratio, times
from experiments.parity.compare import Errors
from levers.policy import ParityClass

Tensors: TypeAlias = tuple[Tensor, ...]

FLOOR_ULPS = {2: 0.5, 4: 1.0, 8: 1.0}
"""Root mean square error that is lossless whatever the reference's, by bytes of the output's dtype.

In units of the last place: a 16-bit output that is rounded once stays below half a unit, and a sum
of four fp32 terms moves by one unit when its terms change places.
"""

FLOOR_ROW_ULPS = 2.0
"""Under the floor no single row may be further away: one wrong row is not averaged away."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What the policy asks of a case.

    Attributes:
        tolerance: largest relative error of a ``tolerated`` lever, or None.
        byte_exact: the policy demands byte-exactness, so the reference must equal itself.
        repeats: runs of each arm on the same inputs, at least 2 (one for each poison).
    """

    tolerance: float | None = None
    byte_exact: bool = False
    repeats: int = 2


@dataclass(frozen=True, slots=True)
class Judged:
    """A case's class from errors alone, by its worst output.

    ``bounds`` holds the reference's errors, and those of each of its reorderings, per output.
    """

    parity: ParityClass
    norm_ratio: float
    row_ratio: float
    candidate_error: float
    reference_error: float
    where: str
    bounds: tuple[tuple[Errors, ...], ...] = ()
    draws: int = 1

    @property
    def lossless(self) -> bool:
        """Whether the errors allow the class lossless."""
        return self.parity.satisfies(ParityClass.LOSSLESS)


def add(errors: Sequence[Errors], outputs: Tensors, truth: Tensors, masks: Tensors | None) -> None:
    """Pool one draw of an arm's outputs."""
    for index, error in enumerate(errors):
        error.add(outputs[index], truth[index], None if masks is None else masks[index])


def judge(
    candidates: Sequence[Errors],
    bounds: Sequence[Sequence[Errors]],
    dtypes: Sequence[torch.dtype],
    bar: Bar,
    draws: int = 1,
) -> Judged:
    """The class of the worst output; the bound is the largest error of the reference's orders."""
    kept = tuple(tuple(bound) for bound in bounds)
    judged = [
        _judge_output(index, error, [bound[index] for bound in kept], dtypes[index], bar)
        for index, error in enumerate(candidates)
    ]
    worst = max(judged, key=lambda one: (one.parity.rank, one.norm_ratio))
    return replace(worst, bounds=kept, draws=draws)


def _judge_output(
    index: int, error: Errors, references: Sequence[Errors], dtype: torch.dtype, bar: Bar
) -> Judged:
    norm_ratio = ratio(error.norm, max(one.norm for one in references))
    row_ratio = ratio(error.row_p99, max(one.row_p99 for one in references))
    where = (
        f"output {index}: error {beside(norm_ratio)} "
        f"(99th-percentile row {times(row_ratio)}, worst row {error.worst_row}), "
        f"relative error {error.relative:.3g}"
    )
    parity = _class_of(error, norm_ratio, row_ratio, dtype, bar)
    reference = max(one.relative for one in references)
    return Judged(parity, norm_ratio, row_ratio, error.relative, reference, where)


def _class_of(
    error: Errors, norm_ratio: float, row_ratio: float, dtype: torch.dtype, bar: Bar
) -> ParityClass:
    if lossless(norm_ratio, row_ratio):
        return ParityClass.LOSSLESS
    floor = FLOOR_ULPS.get(dtype.itemsize, 0.0) if dtype.is_floating_point else 0.0
    if error.ulps <= floor and error.worst_row_ulps <= FLOOR_ROW_ULPS:
        return ParityClass.LOSSLESS
    if bar.tolerance is not None and error.relative <= bar.tolerance:
        return ParityClass.TOLERATED
    return ParityClass.BROKEN
