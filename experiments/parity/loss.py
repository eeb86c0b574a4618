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
from typing import Literal, TypeAlias

from experiments.parity import gradients
from experiments.parity.arms import Arms
from experiments.parity.bench import Bench
from experiments.parity.curves import Curve, compare_curves, first_apart
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
    if apart := _unlike_inputs(first, again):
        return empty(name, f"the reference's repeat did not train on the same batches ({apart})")
    if demands_bits and first.losses != again.losses:
        what = "reference not deterministic: equal runs give other losses"
        where = f"step {first_apart(first.losses, again.losses)}"
        return reference_fault(name, "not-deterministic", what, where, (0, steps))
    if apart := _unlike_inputs(first, candidate):
        return empty(name, f"the arms did not train on the same batches ({apart})")
    if len(candidate.losses) != steps:
        what = f"{len(candidate.losses)} losses, the reference has {steps}"
        return failed(name, what, "", (0, steps))
    if _nonfinite_loss(candidate):
        return failed(name, "candidate: a loss is not finite", "", (0, steps))
    return None


def _unlike_inputs(one: Outputs, other: Outputs) -> str:
    """The first step whose inputs differ, and which of them; empty where none does.

    A curve that ends early is no matter of its inputs.
    """
    for step, (mine, others) in enumerate(zip(one.step_inputs, other.step_inputs, strict=False)):
        if mine != others:
            return f"step {step}: {unlike(mine, others)}"
    if len(one.step_inputs) != len(other.step_inputs):
        return ""
    return unlike(one.inputs_digest, other.inputs_digest)


def _nonfinite_loss(outputs: Outputs) -> bool:
    return not all(map(math.isfinite, outputs.losses)) or bool(nonfinite([outputs]))


def judge(name: str, curve: Curve, parameters: Verdict) -> CheckResult:
    """Curve and gradients together: steps and parameters are counted alike."""
    total = curve.steps + parameters.total
    passed = (curve.steps if curve.inside else 0) + parameters.passed
    if parameters.fault == "inputs-differ":
        return empty(name, parameters.worst)
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
