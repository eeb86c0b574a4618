"""A published row, decided again from its recorded figures by the rules of a live run."""

from __future__ import annotations

from datetime import datetime

from experiments.campaign import rules
from experiments.campaign.files import CampaignFile
from experiments.campaign.records import (
    Accepted,
    AxisReached,
    CampaignRow,
    LeverStanding,
    PathLeft,
    Residual,
)
from experiments.campaign.spec import RecordedCampaign, RecordedGoal, RecordedLever
from experiments.decide import guards as decide_guards
from experiments.policy_replay import agreement as policy_replay
from experiments.policy_replay.evidence import NamedPolicy, broken, evidence_of, named
from experiments.records import Outcome
from experiments.spool import new_run_id

AS_RECORDED = "as recorded: no figures were published, so it was not decided again"
VERDICTS = (Outcome.DEFAULT_ON, Outcome.GATED_OFF, Outcome.TERMINAL)


def replayed(file: CampaignFile, campaign: RecordedCampaign, now: datetime) -> CampaignRow:
    """The row of a recorded campaign; no device is touched.

    Raises:
        UnknownName: there is no policy of that name.
    """
    policy = named(campaign.policy)
    axes = tuple(_axis(goal, campaign.source) for goal in campaign.axes)
    levers = tuple(_lever(one, policy) for one in campaign.levers)
    left = rules.paths_left([PathLeft.of(path) for path in campaign.paths], levers)
    state = rules.state_of(axes, levers)
    known = rules.doubts_of(axes, levers, left, residual=bool(campaign.residual))
    doubts = (*campaign.doubts, *known)
    return CampaignRow(
        row_id=new_run_id(now),
        name=campaign.name,
        summary=campaign.summary,
        file=file.path,
        file_digest=file.digest,
        created_at=now.isoformat(),
        state=state.state,
        why=state.why,
        recorded=True,
        workload=campaign.workload,
        device_kind=campaign.device_kind,
        axes=axes,
        levers=levers,
        residual=Residual(source=campaign.source, said=campaign.residual)
        if campaign.residual
        else None,
        paths=left,
        binding=campaign.binding,
        confidence=rules.confidence_of(state.state, doubts),
        doubts=doubts,
    )


def _axis(goal: RecordedGoal, source: str) -> AxisReached:
    return AxisReached(
        axis=goal.axis,
        target=goal.target,
        state=rules.standing(goal.ratio, goal.ratio),
        ratio=goal.ratio,
        lower=goal.ratio,
        upper=goal.ratio,
        source=source,
    )


def _lever(one: RecordedLever, policy: NamedPolicy) -> LeverStanding:
    record = one.decision
    outcome, reason, why = record.outcome, "", AS_RECORDED
    accepted: Accepted = "not known"
    acceptance = one.acceptance
    if one.figures:
        found = policy_replay.decided(record, policy, "wanted")
        outcome, reason, why = found.outcome, found.reason, found.detail
        accepted, said = _acceptance(one, policy)
        acceptance = "; ".join(filter(None, (said, one.acceptance)))
    on = outcome is Outcome.DEFAULT_ON
    decided = outcome in VERDICTS
    return LeverStanding(
        lever=record.lever,
        candidates=(one.setting,),
        state="decided" if decided else "open",
        why=why,
        setting=one.setting,
        outcome=outcome if decided else None,
        reason=reason if decided else "",
        default_state="on" if on else "off",
        accepted=accepted,
        acceptance=acceptance,
        credited="not measured" if on else "not on",
        credit=one.credit,
    )


def _acceptance(one: RecordedLever, policy: NamedPolicy) -> tuple[Accepted, str]:
    """Whether every recorded axis held, by the guards of the policy."""
    evidence = evidence_of(one.decision, policy.policy, "wanted")
    if broken(one.decision):
        return "not held", "a parity gate failed"
    checks = decide_guards.guard_checks(evidence)
    worse = decide_guards.proven_worse(checks)
    if worse:
        return "not held", "; ".join(check.describe() for check in worse)
    if not one.decision.axes or not all(check.inside for check in checks):
        return "undecided", "not every axis has figures of both arms"
    return "held", f"all {len(checks)} recorded axes"
