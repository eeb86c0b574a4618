"""The parity battery, the witnesses and the failures of a run as rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments import formats
from experiments.parity_records import CheckResult
from experiments.records import ArmFailure
from experiments.run_record import RunRecord
from experiments.view.axes import inert_axes

STATUS_WORDS = {
    "passed": "passed",
    "failed": "FAILED",
    "empty": "compared nothing",
    "not-run": "did not run",
    "reference-fault": "reference at fault",
    "lever-defective": "lever defective",
}
"""Check statuses in words; what did not run is never shown as a pass."""

STATUS_TONES = {"passed": "good", "not-run": "muted"}

ARM_WORDS = {
    "ref": "reference",
    "cand": "candidate",
    "oracle": "oracle",
    "oracle-ref": "reference beside the oracle",
}
"""The arms in words."""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check: how much it compared, the worst case and where, and what it lets a run claim."""

    name: str
    status: str
    count: str
    worst: str
    detail: str
    allows: str
    seconds: str
    tone: str


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What each arm was seen to run on one axis."""

    axis: str
    ref: str
    cand: str
    engaged: str
    tone: str


@dataclass(frozen=True, slots=True)
class FailureRow:
    """An arm that could not do its work, and its last words."""

    arm: str
    kind: str
    stage: str
    message: str
    traceback: str


def check_rows(record: RunRecord) -> tuple[CheckRow, ...]:
    """The checks of the battery in the order in which they ran."""
    return tuple(check_row(check) for check in (record.parity.checks if record.parity else ()))


def check_row(check: CheckResult) -> CheckRow:
    """One check as shown in reports and while a run goes on."""
    worst = " at ".join(part for part in (check.worst, check.where) if part)
    return CheckRow(
        name=check.name,
        status=STATUS_WORDS[check.status],
        count=f"{check.passed}/{check.total}" if check.total else "-",
        worst=worst or "-",
        detail=check.detail,
        allows=check.strongest.value if check.status in ("passed", "failed") else "-",
        seconds=_seconds(check),
        tone=STATUS_TONES.get(check.status, "bad"),
    )


def _seconds(check: CheckResult) -> str:
    if check.status == "not-run":
        return "-"
    return "cached" if check.cached else formats.duration(check.seconds)


def parity_line(record: RunRecord) -> str:
    """The class of the run: the weaker of what was claimed and what was measured."""
    parity = record.parity
    if parity is None:
        return "not measured"
    ran = [check for check in parity.checks if check.status != "not-run"]
    passed = sum(check.status == "passed" for check in ran)
    skipped = len(parity.checks) - len(ran)
    counted = f"{passed}/{len(ran)} checks passed" + (f", {skipped} did not run" if skipped else "")
    return (
        f"{parity.parity_class.value} (claimed {parity.claimed.value}, measured "
        f"{parity.measured.value}; {counted})"
    )


def plan_rows(record: RunRecord) -> tuple[PlanRow, ...]:
    """The plans of both arms; axes on which both arms ran the same things share a row."""
    plans = {witness.arm: witness.plans for witness in record.witnesses}
    ref, cand = plans.get("ref", {}), plans.get("cand", {})
    axes = [*ref, *(axis for axis in cand if axis not in ref)]
    seen: dict[tuple[str, str], list[str]] = {}
    for axis in axes:
        ran = ref.get(axis, "not seen"), cand.get(axis, "not seen")
        seen.setdefault(ran, []).append(axis)
    inert = inert_axes(record)
    return tuple(
        PlanRow(
            axis=_named(mine, axes),
            ref=ran[0],
            cand=ran[1],
            engaged="inert: same path" if mine[0] in inert else "engaged",
            tone="muted" if mine[0] in inert else "good",
        )
        for ran, mine in seen.items()
    )


def _named(some: Sequence[str], axes: Sequence[str]) -> str:
    """Axes in a row that stands for several."""
    return f"all {len(axes)} axes" if len(some) == len(axes) > 1 else ", ".join(some)


def failure_rows(record: RunRecord) -> tuple[FailureRow, ...]:
    """The arms that failed."""
    return tuple(_failure_row(failure) for failure in record.failures)


def _failure_row(failure: ArmFailure) -> FailureRow:
    return FailureRow(
        arm=ARM_WORDS[failure.arm],
        kind=failure.kind,
        stage=failure.stage,
        message=failure.message,
        traceback=failure.traceback.strip(),
    )


def lost_rows(record: RunRecord) -> tuple[str, ...]:
    """The lost pairs with their causes."""
    return tuple(
        f"pair {lost.pair + 1} ({ARM_WORDS[lost.arm]}): {lost.cause}" for lost in record.lost
    )
