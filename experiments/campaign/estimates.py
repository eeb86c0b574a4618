"""What to measure next in a campaign, and what it takes of the device at most."""

from __future__ import annotations

from experiments.campaign.place import Place
from experiments.campaign.records import CampaignRow, LeverStanding, NextStep
from experiments.campaign.spec import PlannedLever
from experiments.parsing import budget_seconds
from experiments.plan import make_plan
from experiments.prepare import looks_up_to, takes_turns
from experiments.sample_times import SampleTimes, estimate_s, times_of


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
    times = times_at(place, place.campaign.lever_oracle or place.campaign.oracle)
    if times is None:
        return None
    limit = limit_s(place, planned)
    plan = make_plan(0, looks_up_to(planned.pairs)[-1], oracle=True)
    several = len(planned.candidates)
    selection = (several + 1) * plan.pairs * times.arm_s if several > 1 else 0.0
    whole = estimate_s(plan, times, 0.0, None) + selection
    return whole if limit is None else min(whole, limit)


def binding_s(place: Place, rows: int) -> float | None:
    """Seconds of the blocks of a binding run; None where the device is not here."""
    times, blocks = times_at(place, place.campaign.oracle), place.campaign.blocks
    if times is None or place.device is None:
        return None
    arms = 2 * (rows - 1) - 1 if takes_turns(place.device) else rows - 1
    return blocks * arms * times.arm_s + times.oracles(blocks)


def limit_s(place: Place, planned: PlannedLever) -> float | None:
    """The limit of one lever: its own, else the campaign's."""
    text = planned.budget or place.campaign.lever_budget
    return budget_seconds(text) if text else None


def times_at(place: Place, oracle: str) -> SampleTimes | None:
    """What a process takes, by the workload's own estimate; None where the device is not here."""
    if place.device is None:
        return None
    return times_of(place.workload, place.parameters, place.device.facts, oracle)
