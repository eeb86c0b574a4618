"""What ends a run before any speed counts: faults, failures, witnesses, parity (steps 1 to 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from experiments.decide.evidence import Evidence
from experiments.parity_records import CheckResult
from experiments.records import ArmFailure, Decision, FailureKind, Outcome
from levers.policy import ParityClass

REFERENCE_REASONS: dict[FailureKind, str] = {
    "out-of-memory": "reference-failed",
    "crashed": "reference-failed",
    "hung": "reference-failed",
    "not-finite": "reference-not-finite",
    "not-restored": "not-restored",
    "unmet": "unmet",
    "lever-defective": "lever-defective",
    "inputs-changed": "inputs-differ",
}
"""What a failure of the reference makes of the run: always invalid."""

CANDIDATE_REASONS: dict[FailureKind, tuple[Outcome, str]] = {
    "out-of-memory": (Outcome.GATED_OFF, "out-of-memory"),
    "crashed": (Outcome.GATED_OFF, "candidate-crashed"),
    "hung": (Outcome.GATED_OFF, "candidate-hung"),
    "not-finite": (Outcome.GATED_OFF, "parity-failed"),
    "not-restored": (Outcome.INVALID, "not-restored"),
    "unmet": (Outcome.INVALID, "unmet"),
    "lever-defective": (Outcome.INVALID, "lever-defective"),
    "inputs-changed": (Outcome.INVALID, "inputs-differ"),
}
"""What a failure of the candidate makes of the run, where the reference did the same work."""

_FAULT_REASONS = {
    "not-finite": "reference-not-finite",
    "not-deterministic": "reference-not-deterministic",
    "failed": "reference-failed",
    "": "reference-failed",
}


def decide_before_timing(evidence: Evidence) -> Decision | None:
    """The decision that needs no sample, or None where the candidate may be timed.

    It may be asked after the witness pass (parity still None) and after the battery; the first rule
    that holds decides: the plan at fault, other weights than at the start, the reference at fault,
    a failure of the candidate, not engaged, not restored, parity.
    """
    rules: tuple[Callable[[Evidence], Decision | None], ...] = (
        _plan_fault,
        _inputs_changed,
        _reference_failure,
        _check_fault,
        _candidate_failure,
        _not_engaged,
        _not_restored,
        _parity,
    )
    return next((found for rule in rules if (found := rule(evidence))), None)


def invalid(reason: str, detail: str, axes: tuple[str, ...] = ()) -> Decision:
    """An invalid run, with its cause."""
    return Decision(outcome=Outcome.INVALID, reason=reason, detail=detail, axes=axes)


def _plan_fault(evidence: Evidence) -> Decision | None:
    """A fault that the runner found, or a policy that this workload cannot answer."""
    for reason, text in evidence.faults:
        return invalid(reason, text)
    names = [axis.name for axis in evidence.axes]
    patterns = [*evidence.policy.primaries] if not evidence.primaries else []
    patterns += [g.axis for g in evidence.policy.guards if not any(map(g.covers, names))]
    if patterns:
        text = f"the policy names {', '.join(patterns)}, and the workload reports no such axis"
        return invalid("check-empty", f"{text} (it reports {', '.join(names) or 'none'})")
    return None


def _inputs_changed(evidence: Evidence) -> Decision | None:
    """A process that read other weights than the run began with, the oracle's too: it says which.

    What the others decoded and timed may be of either.
    """
    for failure in evidence.failures:
        if failure.kind == "inputs-changed":
            return invalid("inputs-differ", f"{failure.arm} at {failure.stage}: {failure.message}")
    return None


def _reference_failure(evidence: Evidence) -> Decision | None:
    for failure in evidence.failures:
        if failure.arm in ("ref", "oracle-ref"):
            return invalid(REFERENCE_REASONS[failure.kind], _reference_text(evidence, failure))
    return None


def _reference_text(evidence: Evidence, failure: ArmFailure) -> str:
    text = _said("reference", failure)
    candidate_failed = any(one.arm == "cand" for one in evidence.failures)
    worked = any(witness.arm == "cand" for witness in evidence.witnesses) or any(
        sample.arm == "cand" for sample in evidence.samples
    )
    if failure.kind == "out-of-memory" and worked and not candidate_failed:
        text += (
            "; the candidate did the same work: a capability that the reference lacks, "
            "not a speed-up"
        )
    return text


def _check_fault(evidence: Evidence) -> Decision | None:
    """A check that found the reference or the lever defective, or that compared nothing."""
    for check in evidence.parity.checks if evidence.parity else ():
        if check.status == "lever-defective":
            return invalid("lever-defective", described(check))
        if check.status == "empty":
            return invalid("check-empty", f"{check.name} compared nothing: {check.detail}")
        if check.status == "reference-fault" and not _bearable(check, evidence):
            return invalid(_FAULT_REASONS[check.fault], described(check))
    return None


def _bearable(check: CheckResult, evidence: Evidence) -> bool:
    """A reference that differs from itself ends the run only where byte-exactness is demanded."""
    demanded = evidence.policy.demanded is ParityClass.BYTE_EXACT
    return check.fault == "not-deterministic" and not demanded


def _candidate_failure(evidence: Evidence) -> Decision | None:
    for failure in evidence.failures:
        if failure.arm == "cand":
            outcome, reason = CANDIDATE_REASONS[failure.kind]
            return Decision(outcome=outcome, reason=reason, detail=_said("candidate", failure))
    return None


def _said(arm: str, failure: ArmFailure) -> str:
    """Who failed, how and where; a lever's own fault is no arm's."""
    who = "the lever" if failure.kind == "lever-defective" else f"the {arm} {failure.kind}"
    return f"{who} at {failure.stage}: {failure.message}"


def _not_engaged(evidence: Evidence) -> Decision | None:
    """The arms' plans are equal, or an arm has no witness although the run went on."""
    ref, cand = evidence.plans("ref"), evidence.plans("cand")
    absent = {"ref", "cand"} - {witness.arm for witness in evidence.witnesses}
    if absent:
        went_on = evidence.parity is not None or evidence.look is not None
        text = f"no witness pass of the {' and the '.join(sorted(absent))} arm was made"
        return invalid("not-engaged", text) if went_on else None
    if not ref and not cand:
        return invalid("not-engaged", "no witness saw a launch of the changed sites in either arm")
    plans = ", ".join(f"{axis}: {plan}" for axis, plan in sorted(ref.items()))
    if ref == cand:
        return invalid("not-engaged", f"both arms ran the same plan on every axis ({plans})")
    counted = evidence.counted("ref")
    if counted and counted == evidence.counted("cand"):
        same = ", ".join(f"{where}: {what}" for where, what in sorted(counted.items()))
        text = "the lever's witness tells the arms apart, but its sites counted the same in both"
        return invalid("not-engaged", f"{text} ({same})")
    if not evidence.engaged:
        text = f"both arms ran the same plan on every primary axis ({plans})"
        return invalid("not-engaged", text, evidence.primaries)
    return None


def _not_restored(evidence: Evidence) -> Decision | None:
    for witness in evidence.witnesses:
        if witness.left_changed:
            left = ", ".join(witness.left_changed)
            return invalid("not-restored", f"after the {witness.arm} arm {left} stayed changed")
    return None


def _parity(evidence: Evidence) -> Decision | None:
    """The class of the run is broken, or weaker than the policy demands."""
    report = evidence.parity
    if report is None:
        return None
    if not any(check.total for check in report.checks):
        return invalid("check-empty", "no check of the battery compared anything")
    found, demanded = evidence.parity_class, evidence.policy.demanded
    if found is not ParityClass.BROKEN and found.satisfies(demanded):
        return None
    blamed = [described(c) for c in report.checks if not c.strongest.satisfies(demanded)]
    why = "; ".join(blamed) or f"the lever claims only {report.claimed}"
    return Decision(
        outcome=Outcome.GATED_OFF,
        reason="parity-failed",
        detail=f"{found} where the policy demands {demanded}: {why}",
    )


def described(check: CheckResult) -> str:
    """A check in one line: ``op 113/114, worst 3.1e-2 at ragged: detail``."""
    worst = f", worst {check.worst}" if check.worst else ""
    where = f" at {check.where}" if check.where else ""
    detail = f": {check.detail}" if check.detail else ""
    return f"{check.name} {check.passed}/{check.total}{worst}{where}{detail}"


def parity_notes(evidence: Evidence) -> Iterator[str]:
    """What a reader of the verdict must know of checks that did not fail."""
    for check in evidence.parity.checks if evidence.parity else ():
        if check.status == "reference-fault" or _remarkable(check):
            yield described(check)


def _remarkable(check: CheckResult) -> bool:
    """A passed check that took judgement: near-ties, reports set aside, a curve held to truth."""
    if check.status != "passed":
        return False
    near_ties = check.name == "tokens" and check.detail and check.figures.get("near_ties", 1) != 0
    set_aside = check.figures.get("reports_set_aside", 0) != 0
    return bool(near_ties) or set_aside or "candidate_from_truth" in check.figures
