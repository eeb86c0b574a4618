"""The commands about campaigns: list, status, run, close; beside :mod:`experiments.pipeline`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from experiments import now, pipeline, token_models
from experiments.campaign import files, recorded, reported, reports, rules, store, sync
from experiments.campaign.draw import Drawing, draw
from experiments.campaign.files import CampaignFile
from experiments.campaign.place import place_of
from experiments.campaign.records import CampaignRow
from experiments.campaign.run import Budgets, Sitting
from experiments.campaign.spec import Campaign, RecordedCampaign
from experiments.campaign.standings import Stored
from experiments.files import write_atomically
from experiments.home import Home, make_folder
from experiments.registry.store import Registry
from experiments.requests import Listener
from levers.errors import UsageError


@dataclass(frozen=True, slots=True)
class CampaignLine:
    """One campaign in a list; ``problem`` says why its file cannot be used."""

    name: str
    summary: str = ""
    kind: str = ""
    scope: str = ""
    levers: tuple[str, ...] = ()
    state: str = ""
    drawn_at: str = ""
    closed_at: str = ""
    problem: str = ""


def listing() -> tuple[CampaignLine, ...]:
    """All known campaigns with the state of their last row."""
    where = pipeline.home(reading=True)
    with Registry.open(where.registry) as registry:
        return tuple(
            _line(file, store.latest(registry.store, file.name)) for file in files.listed(where)
        )


def _line(file: CampaignFile, last: CampaignRow | None) -> CampaignLine:
    state = last.state if last else "never drawn"
    at, closed = (last.created_at, last.closed_at) if last else ("", "")
    campaign = file.campaign
    if campaign is None:
        return CampaignLine(file.name, problem=file.problem, state=state, drawn_at=at)
    if isinstance(campaign, RecordedCampaign):
        levers = tuple(one.decision.lever for one in campaign.levers)
        scope = f"{campaign.workload} on {campaign.device_kind}"
    else:
        levers = tuple(one.lever for one in campaign.levers)
        scope = f"{campaign.workload} on {campaign.device_kind or campaign.device}"
    return CampaignLine(
        file.name, campaign.summary, campaign.kind, scope, levers, state, at, closed
    )


def status(name: str) -> CampaignRow:
    """The row as it stands now; one that was met or TERMINAL and is open again is stored so.

    Raises:
        UsageError: no such campaign, or its file names something that is not known.
    """
    where = pipeline.home(reading=True)
    file = files.load(name, where)
    with Registry.open(where.registry) as registry:
        before = store.latest(registry.store, file.name)
        row = _drawn(file, where, registry, before)
        if before is not None and row.state == before.state:
            kept = {"closed_by": before.closed_by, "closed_at": before.closed_at}
            row = row.model_copy(update=kept)
        elif before is not None and os.access(where.root, os.W_OK):
            store.save(registry.store, row)
    return row


def _drawn(
    file: CampaignFile, where: Home, registry: Registry, before: CampaignRow | None
) -> CampaignRow:
    moment = datetime.now(UTC)
    if isinstance(file.campaign, RecordedCampaign):
        return recorded.replayed(file, file.campaign, moment)
    assert isinstance(file.campaign, Campaign), "a loaded file holds a campaign"
    place = place_of(file.campaign, before)
    current = now.stack(registry, place.driver, place.known)
    return draw(Drawing(file, place, Stored(registry, where, current), before), moment)


def run(
    name: str,
    budgets: Budgets,
    listener: Listener,
    *,
    replay: bool = False,
    tokens_on: tuple[str, ...] = (),
) -> CampaignRow:
    """Measure what is open and draw the row; a recorded campaign is decided again instead.

    Args:
        name: of the campaign, or its file.
        budgets: limits as typed.
        listener: hears what happens.
        replay: a recorded campaign is meant.
        tokens_on: models for the tokens in place of the file's; none takes the file's.

    Raises:
        UsageError: the campaign cannot be run here; nothing was measured.
        StoreError: something cannot be written; what was reported is on disk.
        KeyboardInterrupt: it was interrupted; running it again goes on.
    """
    where = pipeline.home()
    file = files.load(name, where)
    if replay and not isinstance(file.campaign, RecordedCampaign):
        raise UsageError(
            f"campaign {file.name} is measured, and holds no recorded figures to replay",
            cure="leave out --replay",
        )
    file = _with_tokens(file, tokens_on)
    with Registry.open(where.registry) as registry:
        before = store.latest(registry.store, file.name)
        if isinstance(file.campaign, RecordedCampaign):
            row = _drawn(file, where, registry, before)
            store.save(registry.store, row)
    if isinstance(file.campaign, Campaign):
        place = place_of(file.campaign, before)
        row = Sitting(file, place, where, budgets, listener, before, _silent).go()
        row = _still_closed(row, before, where)
    _report(row, where, listener)
    return row


def _with_tokens(file: CampaignFile, tokens_on: tuple[str, ...]) -> CampaignFile:
    """The file with other models for the tokens.

    Raises:
        UsageError: nothing is measured in it.
    """
    if not tokens_on or file.campaign is None:
        return file
    if isinstance(file.campaign, RecordedCampaign):
        raise UsageError(
            f"campaign {file.name} is recorded, and decodes nothing",
            cure=f"leave out {token_models.OPTION}",
        )
    changed = file.campaign.model_copy(update={"tokens_on": tokens_on})
    return replace(file, campaign=changed)


def _silent(row: CampaignRow) -> None:
    """Nobody but the registry hears of the rows between."""


def _still_closed(row: CampaignRow, before: CampaignRow | None, where: Home) -> CampaignRow:
    """A row that a person closed stays closed while its state is the same."""
    if before is None or not before.closed_at or before.state != row.state:
        return row
    kept = {"closed_by": before.closed_by, "closed_at": before.closed_at}
    row = row.model_copy(update=kept)
    with Registry.open(where.registry) as registry:
        store.save(registry.store, row)
    return row


def close(name: str, by: str, listener: Listener) -> CampaignRow:
    """Close a row that is met or TERMINAL.

    Raises:
        UsageError: it is open, with what is left.
    """
    where = pipeline.home()
    file = files.load(name, where)
    with Registry.open(where.registry) as registry:
        before = store.latest(registry.store, file.name)
        row = _drawn(file, where, registry, before)
        done = rules.closed(row, name=by, at=datetime.now(UTC).isoformat())
        store.save(registry.store, done)
    _report(done, where, listener)
    return done


def _report(row: CampaignRow, where: Home, listener: Listener) -> None:
    """Write the Markdown and the page, and mirror the row; a mirror that is down costs a line."""
    listener.on_stage("save", "row, page and MLflow")
    folder = make_folder(reports.folder(where, row.name))
    reported.note(folder, row)
    write_atomically(folder / "row.md", reports.markdown(row))
    write_atomically(folder / "report.html", reports.page(row))
    write_atomically(folder / "row.json", row.model_dump_json(indent=1) + "\n")
    if problem := sync.hand_over(row, where):
        said = f"MLflow does not hold this row ({problem}); it is in {folder}"
        listener.on_warning(f"{said}, and levergate sync mirrors it later")
