"""What to measure next in a campaign, and what it takes of the device at most."""

from __future__ import annotations

from experiments.campaign.place import Place
from experiments.campaign.records import CampaignRow, LeverStanding, NextStep
from experiments.campaign.spec import PlannedLever
from experiments.parsing import budget_seconds
from experiments.plan import make_plan
from experiments.prepare import looks_up_to, takes_turns
from experiments.ranks.needs import needs_of
from experiments.runner import estimate_s


def next_step(place: Place, row: CampaignRow, rows: int) -> NextStep | None:
    """The next thing to do for an open row; None where nothing is left.

    Args:
        place: where the campaign is.
        row: as drawn.
        rows: processes of one block of a binding run.
    """
    if row.state != "open":
        return None
    command = f"levergate campaign run {row.name}"
    if row.open_levers:
        first = row.open_levers[0]
        planned = planned_of(place, first)
        return NextStep(
            what=f"measure {first.lever}", command=command, estimate_s=lever_s(place, planned)
        )
    if row.unbound:
        return NextStep(what="the binding run", command=command, estimate_s=binding_s(place, rows))
    if row.unnamed:
        what = f"name {', '.join(row.unnamed)} in {row.file}, or decline it with a reason"
        return NextStep(what=what, command=command)
    what = f"more blocks than {place.campaign.blocks} (blocks in {row.file})"
    return NextStep(what=what, command=command, estimate_s=binding_s(place, rows))


def planned_of(place: Place, lever: LeverStanding) -> PlannedLever:
    """The line of the file behind a standing."""
    return next(one for one in place.campaign.levers if one.lever == lever.lever)


def lever_s(place: Place, planned: PlannedLever) -> float | None:
    """Seconds of the measuring of one lever; None where the device is not here.

    Several settings run in turns with one reference, and the winner is measured again.
    """
    sample_s = sample_seconds(place)
    if sample_s is None:
        return None
    limit = limit_s(place, planned)
    plan = make_plan(0, looks_up_to(planned.pairs)[-1], oracle=True)
    several = len(planned.candidates)
    selection = (several + 1) * plan.pairs * sample_s if several > 1 else 0.0
    whole = estimate_s(plan, sample_s, 0.0, None) + selection
    return whole if limit is None else min(whole, limit)


def binding_s(place: Place, rows: int) -> float | None:
    """Seconds of the blocks of a binding run; None where the device is not here."""
    sample_s = sample_seconds(place)
    if sample_s is None or place.device is None:
        return None
    per_block = 2 * (rows - 1) if takes_turns(place.device) else rows
    return per_block * place.campaign.blocks * sample_s


def limit_s(place: Place, planned: PlannedLever) -> float | None:
    """The limit of one lever: its own, else the campaign's."""
    text = planned.budget or place.campaign.lever_budget
    return budget_seconds(text) if text else None


def sample_seconds(place: Place) -> float | None:
    """What one process takes, by the workload's own estimate."""
    if place.device is None:
        return None
    return needs_of(place.workload, place.parameters, place.device.facts).seconds_per_sample
