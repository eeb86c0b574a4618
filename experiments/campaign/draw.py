"""Drawing a row: from a campaign file and the registry to what is met, missed and left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from experiments.campaign import binding, credit, rules, tokens
from experiments.campaign.binding import Bound
from experiments.campaign.estimates import next_step
from experiments.campaign.files import CampaignFile
from experiments.campaign.place import Place
from experiments.campaign.records import AxisReached, CampaignRow, LeverStanding, PathLeft, Residual
from experiments.campaign.residual import residual_of
from experiments.campaign.standings import Stored, standings
from experiments.spec import told
from experiments.spool import new_run_id


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a row is drawn from.

    Attributes:
        before: the last stored row, which says whether this one re-opens.
        problems: per lever, why it could not be measured in this sitting.
    """

    file: CampaignFile
    place: Place
    stored: Stored
    before: CampaignRow | None
    problems: Mapping[str, str] = field(default_factory=dict)


def draw(of: Drawing, now: datetime) -> CampaignRow:
    """The row as it stands now."""
    place, stored = of.place, of.stored
    found = binding.on_set(place, stored.registry, stored.current) if place.parameters else ()
    bound = (
        binding.bound(place, stored.home, found)
        if place.parameters
        else Bound(missing=place.absent)
    )
    levers = tuple(_with_problem(one, of.problems) for one in standings(place, stored))
    axes, levers, unbound = _bound(of, bound, levers)
    residual = _residual(bound)
    known = in_catalog(place)
    unnamed = tuple(name for name in known if name not in place.campaign.named)
    state = rules.state_of(axes, levers, unnamed, unbound)
    left = rules.paths_left([PathLeft.of(path) for path in place.campaign.paths], levers)
    compared = tokens.compared_with(place, found)
    untold = [one.label for one in place.tokens_on if one not in compared]
    doubts = rules.doubts_of(axes, levers, left, residual=residual is not None, untold=untold)
    row = CampaignRow(
        **_head(of, now),
        tokens_on=told(compared, place.parameters),
        token_models=place.tokens_on,
        state=state.state,
        why=state.why,
        catalog=known,
        unnamed=unnamed,
        axes=axes,
        levers=levers,
        residual=residual,
        paths=left,
        binding=bound.record.stack_id if bound.record else "",
        unbound=unbound,
        confidence=rules.confidence_of(state.state, doubts),
        doubts=doubts,
    )
    again = rules.reopened(of.before, row)
    step = next_step(place, row, binding.rows_of(found))
    return row.model_copy(update={"reopened": again, "next": step})


def _head(of: Drawing, now: datetime) -> dict[str, Any]:
    """What and where the row is about, and when it is drawn."""
    place, campaign = of.place, of.place.campaign
    return {
        "row_id": new_run_id(now),
        "name": campaign.name,
        "summary": campaign.summary,
        "file": of.file.path,
        "file_digest": of.file.digest,
        "created_at": now.isoformat(),
        "workload": place.workload.name,
        "parameters": dict(place.parameters),
        "device_kind": place.device_kind,
        "oracle": campaign.oracle,
        "versions": dict(place.versions),
    }


def in_catalog(place: Place) -> tuple[str, ...]:
    """The names of the levers that the catalog has for this workload."""
    found = (entry.lever for entry in place.known)
    name = place.workload.name
    return tuple(one.name for one in found if one is not None and name in one.workloads)


def _bound(
    of: Drawing, bound: Bound, levers: tuple[LeverStanding, ...]
) -> tuple[tuple[AxisReached, ...], tuple[LeverStanding, ...], str]:
    """Axes and levers as the binding run says, and why there is none that speaks."""
    campaign = of.place.campaign
    if bound.record is None:
        axes = credit.unmeasured(campaign.axes, campaign.oracle, bound.missing)
        return axes, levers, bound.missing
    axes = credit.axes_of(bound.record, campaign.axes)
    found = credit.credited(levers, bound.record, campaign.axes)
    spoken, newer = challenged(found, bound.record.created_at)
    if newer:
        said = f"{', '.join(newer)} was decided again after binding run {bound.record.stack_id}"
        return axes, spoken, f"{said} spoke against it"
    return axes, spoken, ""


def challenged(
    levers: Sequence[LeverStanding], bound_at: str
) -> tuple[tuple[LeverStanding, ...], tuple[str, ...]]:
    """Levers against which the binding run speaks are open; also those decided since then.

    The binding run re-validates every member of the set: where the whole is slower with a lever,
    its verdict does not stand in this company, and is measured again.
    """
    newer = tuple(o.lever for o in levers if o.contradicted and o.decided_at > bound_at)
    opened = []
    for one in levers:
        if one.contradicted and one.lever not in newer and one.state == "decided":
            why = f"the binding run speaks against it: {one.credit}"
            changes = {"state": "open", "why": why, "outcome": None, "reason": ""}
            one = LeverStanding.model_validate({**dict(one), **changes})
        opened.append(one)
    return tuple(opened), newer


def _residual(bound: Bound) -> Residual | None:
    record = bound.record
    if record is None or record.profile is None:
        return None
    return residual_of(record.profile, f"stack {record.stack_id}", record.of_whole)


def _with_problem(one: LeverStanding, problems: Mapping[str, str]) -> LeverStanding:
    if one.state != "open" or one.lever not in problems:
        return one
    return one.model_copy(update={"why": f"{one.why}; {problems[one.lever]}"})
