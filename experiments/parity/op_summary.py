"""The op cases as one check (torch-free): which count, whose fault one is, and the worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from experiments.parity.bounds import beside, times
from experiments.parity.results import empty
from experiments.parity_records import CaseResult, CheckResult
from experiments.values import Scalar, digest_of
from levers.policy import ParityClass

NAME = "op"

DOUBTED_ERROR = 0.05
"""Median relative error of the reference from which truth is doubted where both arms agree: bf16
work stands near 2e-3, and what loses more by rounding differs between two orders of its sums."""

DOUBTED_SHARE = 0.05
"""Median distance of the arms from each other over their distance from truth: rounding errors of
two implementations are about as far apart as each is from truth."""

MOST_NAMED = 3
"""Cases that are named where a check says which it did not count."""


def summary(results: Sequence[CaseResult], seed: int) -> CheckResult:
    """The cases as one check; a reference at fault comes first, then a broken candidate."""
    faulty = [one for one in results if one.status in _FAULTS]
    if faulty:
        return _reference_fault(faulty, len(results))
    counted = [one for one in results if one.status == "failed" or _has_power(one)]
    if not counted:
        return empty(NAME, _why_empty(results))
    if doubt := _doubt(counted):
        return _reference_fault([doubt], len(results))
    failed = [one for one in counted if one.status == "failed"]
    worst = max(failed or counted, key=lambda one: (one.parity.rank, one.norm_ratio))
    compared = (one.parity for one in results if one.status != "empty")
    strongest = max(compared, key=lambda parity: parity.rank)
    return CheckResult(
        name=NAME,
        status="failed" if failed else "passed",
        passed=len(counted) - len(failed),
        total=len(counted),
        worst=worst.fault or _describe(worst),
        where=worst.name,
        detail=_detail(results),
        strongest=strongest,
        figures=_figures(results, worst, seed),
        digest=digest_of(" ".join(f"{one.name}={one.digest}" for one in results)),
    )


_FAULTS: dict[str, Literal["not-finite", "not-deterministic", "failed"]] = {
    "not-finite": "not-finite",
    "not-deterministic": "not-deterministic",
    "reference-failed": "failed",
}


def _reference_fault(faulty: Sequence[CaseResult], total: int) -> CheckResult:
    first = faulty[0]
    return CheckResult(
        name=NAME,
        status="reference-fault",
        passed=total - len(faulty),
        total=total,
        worst=first.fault,
        where=first.name,
        fault=_FAULTS[first.status],
        strongest=ParityClass.BROKEN,
    )


def _doubt(counted: Sequence[CaseResult]) -> CaseResult | None:
    """The middle case, with its fault, where both arms agree with each other and not with truth.

    A truth that is wrong in the same way for both arms leaves their errors equal, and so lossless.
    """
    unequal = [one for one in counted if one.parity is not ParityClass.BYTE_EXACT]
    far = sorted(
        (one for one in unequal if one.reference_error > DOUBTED_ERROR),
        key=lambda one: one.apart / one.reference_error,
    )
    if 2 * len(far) <= len(unequal):
        return None
    middle = far[len(far) // 2]
    if middle.apart >= DOUBTED_SHARE * middle.reference_error:
        return None
    fault = (
        f"both arms are {middle.reference_error:.2g} from truth and {middle.apart:.2g} apart, "
        f"and so in {len(far)} of {len(unequal)} cases: the truth of the cases is wrong, "
        "or both arms are"
    )
    return middle.model_copy(update={"status": "reference-failed", "fault": fault})


def _has_power(result: CaseResult) -> bool:
    return result.status == "passed" and not result.powerless and not result.same


def _why_empty(results: Sequence[CaseResult]) -> str:
    if not results:
        return "there is no case to compare"
    powerless = [one for one in results if one.powerless]
    if powerless:
        null = ", ".join(powerless[0].powerless)
        return f"no power: {null} would pass {powerless[0].name}, and so in every other case"
    same = [one for one in results if one.same]
    if same:
        return (
            f"nothing is compared in {len(same)} of {len(results)} cases: in {same[0].name} "
            f"{same[0].same}"
        )
    return f"{results[0].name}: {results[0].fault}"


def _describe(result: CaseResult) -> str:
    if result.parity is ParityClass.BYTE_EXACT:
        return "bit for bit equal"
    return (
        f"error {beside(result.norm_ratio)} (99th-percentile row {times(result.row_ratio)}), "
        f"relative {result.candidate_error:.2g}"
    )


def _detail(results: Sequence[CaseResult]) -> str:
    """How many cases stand in which class, and what a reader should know beside."""
    counts = {parity: sum(one.parity is parity for one in results) for parity in ParityClass}
    parts = [f"{count} {parity.value}" for parity, count in counts.items() if count]
    powerless = [one.name for one in results if one.powerless]
    if powerless:
        parts.append(f"{len(powerless)} without power, not counted ({', '.join(powerless)})")
    same = [one.name for one in results if one.same]
    if same:
        named = ", ".join(same[:MOST_NAMED]) + (" ..." if len(same) > MOST_NAMED else "")
        parts.append(f"{len(same)} the same work in both arms, not counted ({named})")
    empty = sum(one.status == "empty" for one in results)
    if empty:
        parts.append(f"{empty} empty, not counted")
    unsteady = sum(not one.deterministic for one in results)
    if unsteady:
        parts.append(f"in {unsteady} the candidate differs from itself on equal inputs")
    return "; ".join(parts)


def _figures(results: Sequence[CaseResult], worst: CaseResult, seed: int) -> Mapping[str, Scalar]:
    return {
        "inputs_seed": seed,
        "worst_norm_ratio": worst.norm_ratio,
        "worst_row_p99_ratio": worst.row_ratio,
        "candidate_relative_error": worst.candidate_error,
        "reference_relative_error": worst.reference_error,
        "largest_relative_error": max(one.candidate_error for one in results),
        "cases_redrawn": sum(one.draws > 1 for one in results),
    }
