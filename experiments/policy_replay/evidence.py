"""A recorded decision as evidence that the rules of a live run decide: no second copy of them.

A single value has no interval, so its effect is a point: deterministic, one unit. Every recorded
axis is a primary, and so a guard too. Both arms' plans are the recorded descriptions of the arms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from experiments.decide.evidence import Evidence
from experiments.parity_records import CheckResult, ParityReport
from experiments.policy_replay.corpus import RecordedAxis, RecordedDecision, RecordedGate
from experiments.records import AxisState, Effect, Look
from experiments.sequential import ALPHA
from experiments.witness_records import Witness
from levers.errors import UnknownName
from levers.policy import Axis, GatingPolicy, ParityClass

Untargeted: TypeAlias = Literal["wanted", "ignored"]
"""What an axis counts as whose state was not recorded: failing, or passing."""

LOOKS = (1,)
"""A recorded value is the one look that there is."""

NO_AXIS = Axis("nothing", "", higher_is_better=True)
"""Stands where no axis was recorded: it has no effect, so nothing about speed can be decided."""

ASSUMED = "parity (not recorded, taken at its best)"
"""Name of the check that stands for the best that a missing record could have said."""


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy that a corpus can be decided under."""

    name: str
    summary: str
    policy: GatingPolicy


POLICIES = (
    NamedPolicy(
        "default",
        "gain 1 %, margins 1 %; what is claimed must hold; byte-exact ships unless slower",
        GatingPolicy(primaries=("*",)),
    ),
    NamedPolicy(
        "strict-exact",
        "as default, and nothing ships that is not byte-exact",
        GatingPolicy(primaries=("*",), demands=ParityClass.BYTE_EXACT, strict_tokens=True),
    ),
    NamedPolicy(
        "needs-win",
        "as default, and what is byte-exact must win on a failing axis too",
        GatingPolicy(primaries=("*",), needs_win=True),
    ),
)
"""The closed set of named policies."""


def named(name: str) -> NamedPolicy:
    """The policy of that name.

    Raises:
        UnknownName: there is none.
    """
    for one in POLICIES:
        if one.name == name:
            return one
    raise UnknownName("policy", name, (one.name for one in POLICIES))


def evidence_of(record: RecordedDecision, policy: GatingPolicy, untargeted: Untargeted) -> Evidence:
    """What the rules may look at; a missing parity record is taken at its best (see ``decided``).

    Args:
        record: one recorded decision.
        policy: the bar; what the lever claimed comes from the record.
        untargeted: what an axis counts as whose state was not recorded.
    """
    claimed = ParityClass.BYTE_EXACT if record.byte_exact else ParityClass.LOSSLESS
    axes = tuple(Axis(a.axis, a.unit, a.higher_is_better) for a in record.axes) or (NO_AXIS,)
    return Evidence(
        policy=replace(policy, claims=claimed, untargeted=untargeted),
        axes=axes,
        looks=LOOKS,
        witnesses=tuple(_witnesses(record, axes)),
        parity=ParityReport(checks=checks_of(record) or (_assumed(claimed),), claimed=claimed),
        pairs=1,
        look=_look(record, untargeted),
    )


def checks_of(record: RecordedDecision) -> tuple[CheckResult, ...]:
    """The recorded gates as checks; empty where none of them says anything."""
    found = tuple(_checks(record))
    return found if any(check.total for check in found) else ()


def broken(record: RecordedDecision) -> bool:
    """Whether a gate shows the candidate worse than the reference."""
    return any(check.status == "failed" for check in checks_of(record))


def _checks(record: RecordedDecision) -> Iterator[CheckResult]:
    exact = ParityClass.BYTE_EXACT if record.byte_exact else ParityClass.LOSSLESS
    own = {gate.gate: gate for gate in record.parity}
    for gate in record.parity:
        stem, _, arm = gate.gate.rpartition(" ")
        if arm == "ref" and f"{stem} cand" in own:
            continue  # the reference's own count: it is held against the candidate's below
        other = own.get(f"{stem} ref") if arm == "cand" else None
        yield _check(gate, other.passed if other else gate.reference_passed, exact)


def _check(gate: RecordedGate, reference: int | None, strongest: ParityClass) -> CheckResult:
    """One gate: whole, or held against the reference's own count, or failed, or not counted."""
    if not gate.counted and not gate.failed_in_words:
        said = f"no count was recorded{f' ({gate.note})' if gate.note else ''}"
        return CheckResult(name=gate.gate, status="not-run", passed=0, total=0, detail=said)
    if gate.whole and gate.total and gate.passed:
        return CheckResult(
            name=gate.gate,
            status="passed",
            passed=gate.passed,
            total=gate.total,
            strongest=strongest,
        )
    if gate.passed is not None and reference is not None and gate.passed >= reference:
        return CheckResult(
            name=gate.gate,
            status="passed",
            passed=1,
            total=1,
            detail=f"{gate.passed} of {gate.total}, the reference {reference}: not worse than it",
            strongest=ParityClass.LOSSLESS,
        )
    beside = "" if reference is None else f"the reference passed {reference}"
    words = f"no count, in words: {gate.note}" if not gate.counted else gate.note
    return CheckResult(
        name=gate.gate,
        status="failed",
        passed=gate.passed or 0,
        total=gate.total or 1,
        detail="; ".join(part for part in (beside, words) if part),
        strongest=ParityClass.BROKEN,
    )


def _assumed(claimed: ParityClass) -> CheckResult:
    """The best that the missing parity record could have said."""
    return CheckResult(name=ASSUMED, status="passed", passed=1, total=1, strongest=claimed)


def _witnesses(record: RecordedDecision, axes: tuple[Axis, ...]) -> Iterator[Witness]:
    names = [axis.name for axis in axes]
    yield Witness(arm="ref", plans=dict.fromkeys(names, record.arms["ref"]), launches={})
    yield Witness(arm="cand", plans=dict.fromkeys(names, record.arms["cand"]), launches={})


def _look(record: RecordedDecision, untargeted: Untargeted) -> Look:
    effects = ((axis.axis, axis.effect) for axis in record.axes)
    return Look(
        index=0,
        pairs=1,
        effects=tuple(_point(name, effect) for name, effect in effects if effect is not None),
        states=tuple(state_of(axis, untargeted) for axis in record.axes),
        last=True,
    )


def _point(axis: str, effect: float) -> Effect:
    return Effect(
        axis=axis,
        kind="deterministic",
        units=1,
        estimate=effect,
        lower=effect,
        upper=effect,
        sd=0.0,
        nominal_p=ALPHA,
    )


def state_of(axis: RecordedAxis, untargeted: Untargeted) -> AxisState:
    """Whether the reference missed its target, as recorded; without a record, as asked."""
    if axis.failing_before is None:
        return AxisState(axis=axis.axis, state=untargeted)
    return AxisState(
        axis=axis.axis,
        state="failing" if axis.failing_before else "passing",
        target="as recorded",
        ratio=axis.oracle_ratio_before,
        missing="" if axis.oracle_ratio_before else "no ratio was recorded",
    )
