"""Check 4, ``loss``: training curves and gradients of both arms from the same seed and batches.

The candidate's curve is held against the spread of the reference's own repeats and reorderings (the
same sums in another order); where it leaves that band, each arm's curve is held against the same
curve in fp64, since a better gradient moves the curve too, towards it. The gradients are held
against fp64 truth, each arm by itself: a better sum may move a gradient by tens of percent and is
lossless all the same. A parameter that exceeds its bounds is decided on fresh seeds, since the
ratio of two small errors scatters. A lever of the class ``tolerated`` states an error of its own
for gradients; its curve is held as any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from experiments.parity import gradients
from experiments.parity.bench import Arms, Bench
from experiments.parity.bounds import NORM_RATIO
from experiments.parity.determinism import nonfinite
from experiments.parity.gradients import Verdict
from experiments.parity.results import empty, failed, not_run, reference_fault
from experiments.parity_records import CheckResult
from experiments.tasks import Outputs, Task
from experiments.values import Scalar, digest_of, unlike
from levers.policy import ParityClass

NAME = "loss"

TRUTH = "loss-truth"
"""Among a workload's checks where it can train the reference in fp64 (``truth`` of its losses)."""

Arm: TypeAlias = Literal["ref", "cand"]

SPREAD_FACTOR = 3.0
"""The candidate's curve may be this much further from the reference's than its own repeats are.

With a handful of reorderings the largest of them understates the spread by up to such a factor.
"""

LOSS_FLOOR = 2.0**-9
"""Relative deviation of a curve that is within the variance of bf16 kernels.

Half a unit in the last place of a bf16 value in [1, 2) is 2^-8; a mean over many elements stays
below half of that.
"""


def check(bench: Bench) -> CheckResult:
    """Train both arms for a few steps and compare curves and gradients.

    Raises:
        ProcessFailed: a process failed.
    """
    if NAME not in bench.workload.checks:
        return not_run(NAME, f"the workload {bench.spec.workload} has no loss")
    return run(bench, bench.alone, NAME)


def run(bench: Bench, arms: Arms, name: str) -> CheckResult:
    """The whole loss check for one pair of lever sets.

    Raises:
        ProcessFailed: a process failed.
    """
    references = [
        _losses(bench, "ref", arms, 0),
        _losses(bench, "ref", arms, 0, repeat=1),
        *(_losses(bench, "ref", arms, k) for k in range(1, 1 + bench.limits.reorderings)),
    ]
    candidate = _losses(bench, "cand", arms, 0)
    fault = _fault(name, references, candidate, demands_bits=bench.demands_bits)
    if fault is not None:
        return fault
    curve = compare_curves(
        references[0].losses, [one.losses for one in references[1:]], candidate.losses
    )
    if not curve.inside and TRUTH in bench.workload.checks:
        truth = bench.outputs("ref", arms.ref, {"want": "losses", "reorder": 0, "truth": True})
        curve = curve.against(truth.losses)
    parameters = gradients.compare(bench, arms)
    return judge(name, curve, parameters)


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for."""
    return tasks(bench, bench.alone) if NAME in bench.workload.checks else ()


def tasks(bench: Bench, arms: Arms) -> tuple[Task, ...]:
    """The processes that :func:`run` will ask for, unless more draws are needed."""
    reorderings = bench.limits.reorderings
    return (
        _loss_task(bench, "ref", arms, 0),
        _loss_task(bench, "ref", arms, 0, repeat=1),
        *(_loss_task(bench, "ref", arms, k) for k in range(1, 1 + reorderings)),
        _loss_task(bench, "cand", arms, 0),
        *gradients.tasks(bench, arms),
    )


def _loss_task(bench: Bench, arm: Arm, arms: Arms, reorder: int, *, repeat: int = 0) -> Task:
    return bench.task("outputs", arm, arms.of(arm), _wanted(reorder), repeat=repeat)


def _losses(bench: Bench, arm: Arm, arms: Arms, reorder: int, *, repeat: int = 0) -> Outputs:
    return bench.outputs(arm, arms.of(arm), _wanted(reorder), repeat=repeat)


def _wanted(reorder: int) -> dict[str, object]:
    return {"want": "losses", "reorder": reorder}


def _fault(
    name: str, references: Sequence[Outputs], candidate: Outputs, *, demands_bits: bool
) -> CheckResult | None:
    """What ends the check before curves are compared; the reference's faults first."""
    first, again = references[0], references[1]
    steps = len(first.losses)
    if not steps:
        return empty(name, "the reference left no loss")
    if any(_nonfinite_loss(one) for one in references):
        return reference_fault(
            name, "not-finite", "reference: a loss is not finite", "", (0, steps)
        )
    if demands_bits and first.losses != again.losses:
        what = "reference not deterministic: equal runs give other losses"
        where = f"step {_first_apart(first.losses, again.losses)}"
        return reference_fault(name, "not-deterministic", what, where, (0, steps))
    if candidate.inputs_digest != first.inputs_digest:
        apart = unlike(first.inputs_digest, candidate.inputs_digest)
        return empty(name, f"the arms did not train on the same batches ({apart})")
    if len(candidate.losses) != steps:
        what = f"{len(candidate.losses)} losses, the reference has {steps}"
        return failed(name, what, "", (0, steps))
    if _nonfinite_loss(candidate):
        return failed(name, "candidate: a loss is not finite", "", (0, steps))
    return None


def _nonfinite_loss(outputs: Outputs) -> bool:
    return not all(map(math.isfinite, outputs.losses)) or bool(nonfinite([outputs]))


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
        self.first_apart = _first_apart(reference, candidate)
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


def _first_apart(one: Sequence[float], other: Sequence[float]) -> int | None:
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            return step
    return None


def judge(name: str, curve: Curve, parameters: Verdict) -> CheckResult:
    """Curve and gradients together: steps and parameters are counted alike."""
    total = curve.steps + parameters.total
    passed = (curve.steps if curve.inside else 0) + parameters.passed
    if parameters.fault == "not-finite":
        return reference_fault(name, "not-finite", parameters.worst, parameters.where, (0, total))
    wrong = "" if curve.inside else curve.describe()
    wrong = wrong or ("" if parameters.passed == parameters.total else parameters.worst)
    where = parameters.where if curve.inside else f"step {curve.first_apart}"
    detail = "; ".join(filter(None, (_say(curve), parameters.detail)))
    if wrong:
        fault = failed(name, wrong, where, (min(passed, total - 1), total), detail)
        return fault.model_copy(update={"curves": curve.curves})
    return CheckResult(
        name=name,
        status="passed",
        passed=total,
        total=total,
        worst=parameters.worst or curve.describe(),
        where=parameters.where,
        detail=detail,
        strongest=_strongest(curve, parameters),
        figures=_figures(curve, parameters),
        curves=curve.curves,
        digest=digest_of(repr((curve.last, parameters.digest))),
    )


def _strongest(curve: Curve, parameters: Verdict) -> ParityClass:
    """The class that curve and gradients allow."""
    if parameters.tolerated:
        return ParityClass.TOLERATED
    bits = curve.equal and curve.steady and parameters.bits
    return ParityClass.BYTE_EXACT if bits else ParityClass.LOSSLESS


def _say(curve: Curve) -> str:
    """Equal or not, to the last bit, and against which spread."""
    own = "" if curve.steady else "; the reference's own repeats differ"
    if curve.equal:
        return f"{curve.steps} losses bit for bit equal{own}"
    return f"losses differ from step {curve.first_apart} on, {curve.describe()}{own}"


def _figures(curve: Curve, parameters: Verdict) -> Mapping[str, Scalar]:
    return {
        "steps": curve.steps,
        "curve_deviation": curve.deviation,
        "curve_spread": curve.spread,
        "curve_allowed": curve.allowed,
        **_from_truth(curve),
        "last_loss_reference": curve.last[0],
        "last_loss_candidate": curve.last[1],
        **parameters.figures,
    }


def _from_truth(curve: Curve) -> Mapping[str, Scalar]:
    if curve.from_truth is None:
        return {}
    reference, candidate = curve.from_truth
    return {"reference_from_truth": reference, "candidate_from_truth": candidate}
