"""What came of a selection: its record, and the request that measures the winner again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from experiments import formats
from experiments.family.records import FamilyRecord, Fate, SettingResult
from experiments.family.rules import score, winner
from experiments.family.stage import Member
from experiments.records import Decision, Outcome
from experiments.requests import AbRequest

BUDGET_SHARE = 0.5
"""Share of ``--budget`` that the selection may take; the rest is the verdict's."""


def record_of(
    family_id: str, members: Sequence[Member], stopped: str, rounds: int, total_s: float
) -> FamilyRecord:
    """The record of a selection that has ended."""
    spec, head = members[0].spec, members[0].spool.record()
    primaries = tuple(axis.name for axis in head.axes if spec.policy.is_primary(axis.name))
    scores = {member.setting: score(member.look, primaries) for member in members if member.living}
    chosen = winner(scores)
    return FamilyRecord(
        family_id=family_id,
        created_at=head.created_at,
        lever=spec.lever,
        ref=spec.ref,
        workload=spec.workload,
        device=spec.device,
        seed=spec.seed,
        looks=spec.looks,
        rounds=rounds,
        axes=head.axes,
        primaries=primaries,
        settings=tuple(_result(member, chosen, primaries, stopped) for member in members),
        stopped=stopped,
        winner=chosen,
        total_s=total_s,
    )


def winners_request(request: AbRequest, family: FamilyRecord) -> AbRequest | None:
    """An ordinary A/B of the winner, on pairs of its own; None where no setting is left.

    The seed is the selection's, so that the parity checks which the winner passed are found again.
    """
    if family.winner is None:
        return None
    budget_s = None if request.budget_s is None else request.budget_s * (1 - BUDGET_SHARE)
    return replace(
        request,
        cand=family.winner,
        seed=family.seed,
        budget_s=budget_s,
        selected=(*request.selected, *lines(family)),
    )


def lines(family: FamilyRecord) -> tuple[str, ...]:
    """What the winner's run says of the selection: one line on it, and one on each setting."""
    head = (
        f"{family.winner} was chosen among {len(family.settings)} settings in selection "
        f"{family.family_id} ({formats.count(family.rounds, 'round')}, {family.stopped}); "
        "this verdict rests on fresh pairs only"
    )
    return (head, *(f"selection, no verdict: {_line(one)}" for one in family.ranked))


def _line(one: SettingResult) -> str:
    mean = "" if one.score is None else f", mean of the primaries {formats.percent(one.score)} %"
    return f"{one.setting} {one.fate}: {one.decision.outcome} {one.decision.reason}{mean}"


def _result(
    member: Member, chosen: str | None, primaries: Sequence[str], stopped: str
) -> SettingResult:
    record = member.spool.record()
    found = score(member.look, primaries)
    timed = math.isfinite(found)
    fate: Fate = "dropped" if timed else "not-timed"
    if member.living:
        fate = "winner" if member.setting == chosen else "kept"
    return SettingResult(
        setting=member.setting,
        fate=fate,
        decision=member.reading or _still_open(stopped, timed=timed),
        run_id=record.run_id,
        rounds=member.rounds,
        parity=str(record.parity.parity_class) if record.parity else "",
        effects=member.look.effects if member.look is not None else (),
        score=found if timed else None,
    )


def _still_open(stopped: str, *, timed: bool) -> Decision:
    """The reading of a survivor that no look has decided."""
    return Decision(
        outcome=Outcome.INCONCLUSIVE,
        reason="win-undecided" if timed else "too-little-recorded",
        detail=f"still open when the selection ended: {stopped}",
    )
