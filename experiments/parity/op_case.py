"""One case of the op check: both arms against fp64 truth, poisoned outputs, null candidates.

Runs in the measured process. A case that exceeds its bounds by little is decided on fresh draws of
its inputs, since the ratio of two independent errors of n elements scatters by 1 / sqrt(n).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from experiments.parity import compare, op_judge, op_run, op_work
from experiments.parity.compare import Errors
from experiments.parity.op_judge import Bar, Judged
from experiments.parity.op_run import Produced, Tensors
from experiments.parity_records import CaseResult, CaseStatus
from experiments.values import digest_of
from levers.base import OpCase
from levers.policy import ParityClass

REDRAW_ELEMENTS = 16_384
REDRAW_ROWS = 256
REDRAW_LIMIT = 32
"""Fresh draws pool at least so many elements and rows (a scatter below 1 %), up to the limit."""

NO_SCATTER = 2.0
"""A candidate error above this multiple of the reference's is not drawn again: it is no scatter."""


@dataclass(frozen=True, slots=True)
class _Draw:
    """One draw of a case: both arms' outputs and what they are held against."""

    inputs: Tensors
    reference: Tensors
    candidate: Tensors
    truth: Tensors
    masks: Tensors | None


def check_case(case: OpCase, seed: int, bar: Bar) -> CaseResult:
    """Run both arms of a case on fresh inputs and say which class it allows."""
    inputs = case.inputs(seed)
    masks = case.masks(inputs) if case.masks else None
    if not sum(output.numel() for output in case.outputs(inputs)):
        return CaseResult(name=case.name, status="empty", fault="the case has no output elements")
    reference = op_run.produce(case, case.reference, inputs, bar.repeats)
    status, fault = _reference_fault(reference, masks, bar)
    if status is not None:
        return CaseResult(name=case.name, status=status, fault=f"reference: {fault}")
    candidate = op_run.produce(case, case.candidate, inputs, bar.repeats)
    wrong = _candidate_fault(candidate, masks)
    if wrong:
        return CaseResult(name=case.name, status="failed", fault=wrong, digest=_digest(candidate))
    truth = op_run.truth_of(case, inputs, reference.outputs, masks)
    kept = (candidate.outputs, truth)
    stale = op_run.stale_fault(case, case.candidate, inputs, kept, masks)
    if stale:
        return CaseResult(name=case.name, status="failed", fault=stale, digest=_digest(candidate))
    draw = _Draw(inputs, reference.outputs, candidate.outputs, truth, masks)
    return _result(case, seed, bar, draw, (reference, candidate))


def reference_alone(case: OpCase, seed: int) -> None:
    """Run the reference and truth only, to tell whose exception it was."""
    inputs = case.inputs(seed)
    outputs = op_run.poisoned(case, case.reference, inputs)
    if any(one.is_cuda for one in outputs):
        torch.cuda.synchronize()  # what the reference did shows here, and not in the lever's truth
    op_run.truth_of(case, inputs, outputs, case.masks(inputs) if case.masks else None)


def _reference_fault(
    reference: Produced, masks: Tensors | None, bar: Bar
) -> tuple[CaseStatus | None, str]:
    """A reference that is itself at fault ends the case before the candidate is looked at."""
    if reference.misbehaved:
        return "reference-failed", reference.misbehaved
    nonfinite = op_run.nonfinite_fault(reference.outputs, masks)
    if nonfinite:
        return "not-finite", nonfinite
    if bar.byte_exact and not reference.repeats_equal:
        return "not-deterministic", f"{bar.repeats} runs on the same inputs gave different bits"
    return None, ""


def _candidate_fault(candidate: Produced, masks: Tensors | None) -> str:
    """What no class forgives: unwritten outputs, changed inputs, NaN where it is not right."""
    faults = [candidate.misbehaved]
    for outputs in candidate.variants:
        faults += [op_run.nonfinite_fault(outputs, masks), op_run.finite_fault(outputs, masks)]
    return next(filter(None, faults), "")


def _result(
    case: OpCase, seed: int, bar: Bar, draw: _Draw, arms: tuple[Produced, Produced]
) -> CaseResult:
    variants = [replace(draw, candidate=outputs) for outputs in arms[1].variants]
    seen = [_judge_draws(case, [variant], bar) for variant in variants]
    judged = first = max(seen, key=lambda one: (one.parity.rank, one.norm_ratio))
    if not first.lossless and first.norm_ratio <= NO_SCATTER:
        judged = _judge_draws(case, _fresh_draws(case, seed, draw), bar)
    steady = all(arm.repeats_equal for arm in arms)
    equal = all(map(compare.bit_equal, draw.candidate, draw.reference))
    parity = ParityClass.BYTE_EXACT if equal and steady else judged.parity
    broken = parity is ParityClass.BROKEN
    return CaseResult(
        name=case.name,
        status="failed" if broken else "passed",
        parity=parity,
        fault=judged.where if broken else "",
        norm_ratio=judged.norm_ratio,
        row_ratio=judged.row_ratio,
        candidate_error=judged.candidate_error,
        reference_error=judged.reference_error,
        apart=_apart(draw),
        deterministic=arms[1].repeats_equal,
        powerless=_powerless(draw, first, bar),
        same=op_work.same(case, draw.inputs) if equal or not steady else "",
        draws=judged.draws,
        digest=_digest(arms[1]),
    )


def _apart(draw: _Draw) -> float:
    """Relative distance of the candidate from the reference, of the output where it is largest."""
    errors = [Errors() for _ in draw.candidate]
    op_judge.add(errors, draw.candidate, draw.reference, draw.masks)
    return max(error.relative for error in errors)


def _digest(produced: Produced) -> str:
    return digest_of(" ".join(compare.sha256(output) for output in produced.outputs))


def _judge_draws(case: OpCase, draws: Iterable[_Draw], bar: Bar) -> Judged:
    """Pool the errors of candidate, reference and the reference's reorderings over the draws."""
    candidates: list[Errors] = []
    bounds: list[list[Errors]] = []
    dtypes: list[torch.dtype] = []
    count = 0
    for draw in draws:
        if not count:
            dtypes = [output.dtype for output in draw.candidate]
            candidates = [Errors() for _ in dtypes]
            bounds = [[Errors() for _ in dtypes] for _ in range(1 + len(case.reorderings))]
        count += 1
        orders = [op_run.poisoned(case, call, draw.inputs) for call in case.reorderings]
        op_judge.add(candidates, draw.candidate, draw.truth, draw.masks)
        for errors, outputs in zip(bounds, [draw.reference, *orders], strict=True):
            op_judge.add(errors, outputs, draw.truth, draw.masks)
    return op_judge.judge(candidates, bounds, dtypes, bar, draws=count)


def _fresh_draws(case: OpCase, seed: int, first: _Draw) -> Iterator[_Draw]:
    """As many new draws as resolve the bounds; the draw that exceeded them is not among them."""
    elements = min(output.numel() for output in first.candidate)
    rows = min(output.numel() // _width(output) for output in first.candidate)
    needed = max(REDRAW_ELEMENTS / max(1, elements), REDRAW_ROWS / max(1, rows))
    for number in range(1, 1 + min(REDRAW_LIMIT, math.ceil(needed))):
        inputs = case.inputs(seed + 7919 * number)
        reference = op_run.poisoned(case, case.reference, inputs)
        candidate = op_run.poisoned(case, case.candidate, inputs)
        masks = case.masks(inputs) if case.masks else None
        truth = op_run.truth_of(case, inputs, reference, masks)
        yield _Draw(inputs, reference, candidate, truth, masks)


def _width(output: Tensor) -> int:
    return max(1, output.shape[-1]) if output.dim() > 1 else 1


def _powerless(draw: _Draw, judged: Judged, bar: Bar) -> tuple[str, ...]:
    """Null candidates that this case would let pass: zeros, nothing at all, a copy of an input."""
    untouched = tuple(map(torch.empty_like, draw.candidate))
    for tensor in untouched:
        compare.poison(tensor, finite=False)
    nulls = {"zeros": tuple(map(torch.zeros_like, draw.candidate)), "nothing written": untouched}
    for number, given in enumerate(draw.inputs):
        if all(given.shape == one.shape and given.dtype == one.dtype for one in draw.candidate):
            nulls[f"a copy of input {number}"] = tuple(given for _ in draw.candidate)
    return tuple(name for name, null in nulls.items() if _null_passes(null, draw, judged, bar))


def _null_passes(null: Tensors, draw: _Draw, judged: Judged, bar: Bar) -> bool:
    if _candidate_fault(Produced(null), draw.masks):
        return False
    errors = [Errors() for _ in null]
    op_judge.add(errors, null, draw.truth, draw.masks)
    dtypes = [tensor.dtype for tensor in null]
    parity = op_judge.judge(errors, judged.bounds, dtypes, bar).parity
    return parity is not ParityClass.BROKEN
