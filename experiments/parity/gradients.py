"""Gradients of both arms, each against fp64 truth, parameter by parameter (torch-free judge).

The measured process states the errors; here they are held against the lossless bounds: norm error
at most 1.05 and 99th-percentile row error at most 1.25 of the reference's, or below what rounding
to the working precision does anyway. A lever that claims ``tolerated`` may instead stay below the
error of a gradient that its policy states.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from experiments.parity.arms import Arms
from experiments.parity.bench import Bench
from experiments.parity.bounds import NORM_RATIO, ROW_RATIO, ratio, times
from experiments.tasks import Gradient, Task
from experiments.values import Scalar, digest_of, unlike
from levers.policy import GatingPolicy, ParityClass

BF16_WORK = 2.0**-12
"""Median relative error of the reference above which the work is done in bf16: fp32 work stays
near 2^-22, bf16 work near 2^-9."""

BF16_FLOOR = 2.0**-8
FP32_FLOOR = 2.0**-20
"""Relative errors that are lossless whatever the reference's: half a unit in the last place of a
bf16 value in [1, 2), and eight units of an fp32 one."""

_WANTED: Mapping[str, object] = {"want": "gradients", "reorder": 0}

REDRAWS = 3
"""Fresh seeds on which a parameter above its bounds is decided."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gradients showed.

    ``fault`` is the reference's, or that the arms had different inputs; ``bits``: all digests are
    equal; ``tolerated``: parameters that passed by the policy's tolerance alone.
    """

    passed: int = 0
    total: int = 0
    worst: str = ""
    where: str = ""
    detail: str = ""
    bits: bool = True
    tolerated: int = 0
    fault: Literal["", "not-finite", "inputs-differ"] = ""
    digest: str = ""
    figures: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """One parameter in both arms: relative errors, pooled over draws, and their ratios."""

    parameter: str
    reference: float
    candidate: float
    reference_row: float
    candidate_row: float

    @property
    def norm_ratio(self) -> float:
        """Candidate error over reference error."""
        return ratio(self.candidate, self.reference)

    @property
    def row_ratio(self) -> float:
        """The same for the 99th percentile of the row errors."""
        return ratio(self.candidate_row, self.reference_row)

    def inside(self, floor: float, tolerance: float | None = None) -> bool:
        """Whether the bounds or the tolerance hold; a candidate must be finite to be inside."""
        if not (math.isfinite(self.candidate) and math.isfinite(self.candidate_row)):
            return False
        if tolerance is not None and self.candidate <= tolerance:
            return True
        norm = self.norm_ratio <= NORM_RATIO or self.candidate <= floor
        row = self.row_ratio <= ROW_RATIO or self.candidate_row <= 2 * floor
        return norm and row

    def describe(self) -> str:
        """Both arms' errors."""
        return (
            f"gradient error {self.candidate:.2g} against the reference's {self.reference:.2g} "
            f"({times(self.norm_ratio)}; 99th-percentile row {times(self.row_ratio)})"
        )


def compare(bench: Bench, arms: Arms) -> Verdict:
    """Ask both arms for their gradient errors and judge them.

    Raises:
        ProcessFailed: a process failed.
    """
    (reference, candidate), apart = _ask(bench, arms, 0)
    if apart:
        return apart
    tolerance = tolerance_of(bench.spec.policy)
    first = judge([reference], [candidate], tolerance=tolerance)
    if first.passed == first.total or first.fault or not _comparable(reference, candidate):
        return first
    suspects = outside([reference], [candidate], tolerance)
    draws = []
    for step in range(1, 1 + REDRAWS):
        drawn, apart = _ask(bench, arms, step)
        if apart:
            return apart
        draws.append(drawn)
    references, candidates = zip(*draws, strict=True)
    fresh = judge(references, candidates, only=suspects, tolerance=tolerance)
    return fresh if fresh.passed < fresh.total else first_after(first, fresh)


def tasks(bench: Bench, arms: Arms) -> tuple[Task, ...]:
    """The processes that :func:`compare` asks for first."""
    kinds: tuple[Literal["ref", "cand"], ...] = ("ref", "cand")
    return tuple(bench.task("outputs", arm, arms.of(arm), _WANTED) for arm in kinds)


def tolerance_of(policy: GatingPolicy) -> float | None:
    """Largest relative error of a gradient; None for a lever that claims more than tolerated."""
    if policy.claims is not ParityClass.TOLERATED or policy.tolerance is None:
        return None
    return policy.tolerance.gradient_error


def first_after(first: Verdict, fresh: Verdict) -> Verdict:
    """The first draw's verdict, cleared by fresh draws."""
    redrawn = f"{fresh.total} parameters above their bounds were decided on {REDRAWS} fresh seeds"
    return Verdict(
        passed=first.total,
        total=first.total,
        worst=fresh.worst,
        where=fresh.where,
        detail="; ".join(filter(None, (first.detail, redrawn, fresh.detail))),
        bits=False,
        tolerated=first.tolerated + fresh.tolerated,
        digest=first.digest,
        figures={**first.figures, "parameters_redrawn": fresh.total},
    )


def _ask(
    bench: Bench, arms: Arms, seed_step: int
) -> tuple[tuple[tuple[Gradient, ...], tuple[Gradient, ...]], Verdict | None]:
    """Both arms' gradients of one draw, and what there is to say where it was not the same one."""
    ref = bench.outputs("ref", arms.ref, _WANTED, seed_step=seed_step)
    cand = bench.outputs("cand", arms.cand, _WANTED, seed_step=seed_step)
    apart = unlike(ref.inputs_digest, cand.inputs_digest)
    said = f"the arms' gradients are not of the same batch ({apart})"
    fault = Verdict(worst=said, fault="inputs-differ", bits=False) if apart else None
    return (ref.gradients, cand.gradients), fault


def _comparable(reference: Sequence[Gradient], candidate: Sequence[Gradient]) -> bool:
    return {one.parameter for one in reference} == {one.parameter for one in candidate}


def outside(
    references: Sequence[Sequence[Gradient]],
    candidates: Sequence[Sequence[Gradient]],
    tolerance: float | None = None,
) -> frozenset[str]:
    """The parameters above their bounds and above the tolerance."""
    pairs = _pairs(references, candidates)
    floor = _floor(pairs)
    return frozenset(pair.parameter for pair in pairs if not pair.inside(floor, tolerance))


def judge(
    references: Sequence[Sequence[Gradient]],
    candidates: Sequence[Sequence[Gradient]],
    only: frozenset[str] | None = None,
    tolerance: float | None = None,
) -> Verdict:
    """Hold each parameter's pooled error against the reference's, or against the tolerance."""
    if not references[0] and not candidates[0]:
        return Verdict(detail="no gradients are stated")
    if not _comparable(references[0], candidates[0]):
        total = max(len(references[0]), len(candidates[0]))
        return Verdict(
            total=total, worst="the arms state gradients of other parameters", bits=False
        )
    every = _pairs(references, candidates)
    bad = [one for one in every if not math.isfinite(one.reference)]
    if bad:
        what = "reference: a gradient is not finite"
        return Verdict(0, len(every), what, bad[0].parameter, fault="not-finite", bits=False)
    floor = _floor(every)
    pairs = [one for one in every if only is None or one.parameter in only]
    passed = [one for one in pairs if one.inside(floor, tolerance)]
    tolerated = [one for one in passed if not one.inside(floor)]
    worst = max(pairs, key=lambda one: (not one.inside(floor, tolerance), one.norm_ratio))
    return Verdict(
        passed=len(passed),
        total=len(pairs),
        worst=worst.describe(),
        where=worst.parameter,
        detail=_say_tolerated(tolerated, tolerance),
        tolerated=len(tolerated),
        bits=_digests(references[0]) == _digests(candidates[0]),
        digest=digest_of(str(_digests(candidates[0]))),
        figures=_figures(pairs, worst),
    )


def _say_tolerated(tolerated: Sequence[Pair], tolerance: float | None) -> str:
    if not tolerated:
        return ""
    largest = max(tolerated, key=lambda one: one.candidate)
    return (
        f"above the lossless bounds, inside the stated tolerance {tolerance:g}: "
        f"{len(tolerated)} gradients, the largest {largest.candidate:.2g} at {largest.parameter}"
    )


def _pairs(
    references: Sequence[Sequence[Gradient]], candidates: Sequence[Sequence[Gradient]]
) -> list[Pair]:
    """Pool the draws parameter by parameter: root mean square of the relative errors."""
    pooled = [_by_parameter(references), _by_parameter(candidates)]
    return [
        Pair(
            name,
            _rms([one.relative_error for one in draws]),
            _rms([one.relative_error for one in pooled[1].get(name, [])]),
            _rms([one.row_error_p99 for one in draws]),
            _rms([one.row_error_p99 for one in pooled[1].get(name, [])]),
        )
        for name, draws in pooled[0].items()
    ]


def _by_parameter(draws: Sequence[Sequence[Gradient]]) -> dict[str, list[Gradient]]:
    found: dict[str, list[Gradient]] = {}
    for draw in draws:
        for gradient in draw:
            found.setdefault(gradient.parameter, []).append(gradient)
    return found


def _rms(values: Sequence[float]) -> float:
    if not values:
        return math.nan
    return math.sqrt(sum(value * value for value in values) / len(values))


def _floor(pairs: Sequence[Pair]) -> float:
    """What rounding to the working precision does anyway."""
    typical = statistics.median(one.reference for one in pairs)
    return BF16_FLOOR if typical >= BF16_WORK else FP32_FLOOR


def _digests(gradients: Sequence[Gradient]) -> dict[str, str]:
    return {one.parameter: one.digest for one in gradients}


def _figures(pairs: Sequence[Pair], worst: Pair) -> dict[str, Scalar]:
    """The worst parameter, and the one that gained most."""
    best = min(pairs, key=lambda one: one.norm_ratio)
    return {
        "parameters": len(pairs),
        "worst_parameter": worst.parameter,
        "worst_norm_ratio": worst.norm_ratio,
        "worst_row_p99_ratio": worst.row_ratio,
        "worst_candidate_error": worst.candidate,
        "worst_reference_error": worst.reference,
        "most_improved_parameter": best.parameter,
        "most_improved_candidate_error": best.candidate,
        "most_improved_reference_error": best.reference,
    }
