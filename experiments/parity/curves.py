"""Training curves of both arms: how far they are apart, from the reference's own, from truth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from experiments.parity.bounds import NORM_RATIO

SPREAD_FACTOR = 3.0
"""The candidate's curve may be this much further from the reference's than its own repeats are.

With a handful of reorderings the largest of them understates the spread by up to such a factor.
"""

LOSS_FLOOR = 2.0**-9
"""Relative deviation of a curve that is within the variance of bf16 kernels.

Half a unit in the last place of a bf16 value in [1, 2) is 2^-8; a mean over many elements stays
below half of that.
"""


class Curve:
    """How far the candidate's losses are from the reference's, and how far its own repeats are."""

    def __init__(
        self,
        reference: Sequence[float],
        repeats: Sequence[Sequence[float]],
        candidate: Sequence[float],
    ) -> None:
        scale = _rms(reference) or 1.0
        self.steps = len(reference)
        self.equal = tuple(reference) == tuple(candidate)
        self.steady = all(tuple(reference) == tuple(one) for one in repeats[:1])
        self.first_apart = first_apart(reference, candidate)
        self.deviation = _rms(_gaps(reference, candidate)) / scale
        self.spread = max((_rms(_gaps(reference, one)) for one in repeats), default=0.0) / scale
        self.allowed = max(SPREAD_FACTOR * self.spread, LOSS_FLOOR)
        self.last = (reference[-1], candidate[-1])
        self.curves = _named(reference, repeats, candidate)
        self._scale = scale
        self.from_truth: tuple[float, float] | None = None

    def against(self, truth: Sequence[float]) -> Curve:
        """Also hold each arm against the curve in fp64: a better sum moves the curve, to truth.

        Raises:
            ValueError: the curve of truth has another length.
        """
        arms = self.curves["reference"], self.curves["candidate"]
        reference, candidate = (_rms(_gaps(one, truth)) / self._scale for one in arms)
        self.from_truth = reference, candidate
        self.curves = MappingProxyType({**self.curves, "truth": tuple(truth)})
        return self

    @property
    def inside(self) -> bool:
        """Whether the candidate stays inside the band, or is as near to truth as the reference."""
        if self.deviation <= self.allowed:
            return True
        if self.from_truth is None:
            return False
        reference, candidate = self.from_truth
        return candidate <= max(NORM_RATIO * reference, LOSS_FLOOR)

    def describe(self) -> str:
        """The deviation beside the spread, both relative; the distances from truth if known."""
        said = (
            f"curve {self.deviation:.2g} from the reference's "
            f"(own repeats and reorderings {self.spread:.2g}, allowed {self.allowed:.2g})"
        )
        if self.from_truth is None:
            return said
        reference, candidate = self.from_truth
        return f"{said}; from fp64 truth: reference {reference:.2g}, candidate {candidate:.2g}"


def _named(
    reference: Sequence[float], repeats: Sequence[Sequence[float]], candidate: Sequence[float]
) -> Mapping[str, tuple[float, ...]]:
    """The curves by name; the first of ``repeats`` is the same work again, the others reorder."""
    again = {f"reference repeat {k}": tuple(one) for k, one in enumerate(repeats[:1], 1)}
    reordered = {f"reference reordered {k}": tuple(one) for k, one in enumerate(repeats[1:], 1)}
    own = {"reference": tuple(reference), "candidate": tuple(candidate)}
    return MappingProxyType({**own, **again, **reordered})


def compare_curves(
    reference: Sequence[float], repeats: Sequence[Sequence[float]], candidate: Sequence[float]
) -> Curve:
    """Compare at full precision: the seventh digit counts."""
    return Curve(reference, repeats, candidate)


def _gaps(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values) / len(values))


def first_apart(one: Sequence[float], other: Sequence[float]) -> int | None:
    """The first step at which two curves differ; None where they are equal."""
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            return step
    return None
