"""Short forms of check results that carry no comparison; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from experiments.parity_records import CheckResult
from experiments.values import Scalar
from levers.policy import ParityClass


def not_run(name: str, reason: str) -> CheckResult:
    """A check that does not apply here, and why."""
    return CheckResult(name=name, status="not-run", passed=0, total=0, detail=reason)


def empty(name: str, reason: str) -> CheckResult:
    """A check that ran and compared nothing: it proves nothing, and the run is invalid."""
    return CheckResult(
        name=name, status="empty", passed=0, total=0, detail=reason, strongest=ParityClass.BROKEN
    )


def reference_fault(
    name: str,
    fault: Literal["not-finite", "not-deterministic", "failed"],
    what: str,
    where: str = "",
    counts: tuple[int, int] = (0, 1),
) -> CheckResult:
    """The reference itself is at fault, so that nothing can be held against it."""
    return CheckResult(
        name=name,
        status="reference-fault",
        passed=counts[0],
        total=counts[1],
        worst=what,
        where=where,
        fault=fault,
        strongest=ParityClass.BROKEN,
    )


def failed(
    name: str,
    what: str,
    where: str,
    counts: tuple[int, int],
    detail: str = "",
    figures: Mapping[str, Scalar] | None = None,
) -> CheckResult:
    """The candidate failed the check: no class but broken is possible."""
    return CheckResult(
        name=name,
        status="failed",
        passed=counts[0],
        total=counts[1],
        worst=what,
        where=where,
        detail=detail,
        strongest=ParityClass.BROKEN,
        figures=figures or {},
    )
