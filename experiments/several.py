"""The pipeline of several settings: a selection with the winner's verdict, and a screen.

Beside :mod:`experiments.pipeline`, whose ``ab`` measures the winner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments import order_render, order_view, pipeline, resuming, screen_run, spool_reader
from experiments.family import run as family_run
from experiments.family import store as family_store
from experiments.family.outcome import winners_request
from experiments.family.records import FamilyRecord
from experiments.home import Home
from experiments.registry.store import Registry
from experiments.requests import AbRequest, Listener
from experiments.run_record import RunRecord
from experiments.screen_records import ScreenRecord
from levers.errors import UsageError


def ab(
    request: AbRequest, settings: Sequence[str], listener: Listener
) -> tuple[FamilyRecord, RunRecord | None]:
    """Choose among the settings, then measure the winner on fresh pairs; its verdict decides.

    Returns:
        The selection, and the winner's decided run; None where no setting was left.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        StoreError: something cannot be written; what was reported is on disk.
        KeyboardInterrupt: it was interrupted; the selection or the winner's run can be resumed.
    """
    where = pipeline.home()
    with Registry.open(where.registry) as registry:
        family = family_run.run(request, settings, where, registry, listener)
    _save(where, family)
    return _decided(where, request, family, listener)


def resume(request: AbRequest, listener: Listener) -> tuple[FamilyRecord, RunRecord | None]:
    """Go on with an interrupted selection: with its rounds, or with its winner's run.

    Raises:
        UsageError: the selection is of another lever, has its verdict, or cannot go on here.
        StoreError: something cannot be read or written.
        KeyboardInterrupt: it was interrupted again.
    """
    where, name = pipeline.home(), str(request.resume)
    head, family = family_store.begun(where, name), family_store.found(where, name)
    if head is None:
        raise UsageError(
            f"selection {name} was begun by an older version and cannot be gone on with",
            cure="start it again; parity that passed is found again",
        )
    if head.request.lever != request.lever:
        raise UsageError(
            f"selection {head.family_id} is of {head.request.lever}, not of {request.lever}",
            cure=f"levergate ab {head.request.lever} --resume {head.family_id}",
        )
    if family is not None and (family.winner_run or family.winner is None):
        raise UsageError(
            f"selection {head.family_id} has ended", cure=f"levergate show {head.family_id}"
        )
    evidence = spool_reader.load(family_store.folder(where, head.family_id), head.runs[0][1])
    resuming.refuse_other_selection(request, head, evidence.record)
    if family is None:
        family = family_run.resume(head, where, listener)
        _save(where, family)
    return _decided(where, head.request, family, listener)


def _decided(
    where: Home, request: AbRequest, family: FamilyRecord, listener: Listener
) -> tuple[FamilyRecord, RunRecord | None]:
    """The winner's verdict on fresh pairs; a run of it that was interrupted is gone on with."""
    asked = winners_request(_on_its_models(where, request, family), family)
    if asked is None:
        return family, None
    listener.on_stage("winner", f"{family.lever}={family.winner}, on fresh pairs")
    begun = _winners_run(where, family)
    if begun is not None and begun.status == "decided":
        decided = begun
    else:
        decided = pipeline.ab(replace(asked, resume=begun.run_id if begun else None), listener)
    family = family.model_copy(update={"winner_run": decided.run_id})
    _save(where, family)
    return family, decided


def _on_its_models(where: Home, request: AbRequest, family: FamilyRecord) -> AbRequest:
    """The request with the models on which the winner was compared; what it lacks is said."""
    chosen = [one.run_id for one in family.settings if one.setting == family.winner]
    if not request.tokens_on or not chosen:
        return request
    found = spool_reader.load(family_store.folder(where, family.family_id), chosen[0]).record
    models = tuple(one.text for one in found.spec.tokens_on)
    return replace(request, tokens_on=models, selected=(*request.selected, *found.warnings))


def screen(request: AbRequest, settings: Sequence[str], listener: Listener) -> ScreenRecord:
    """Order the settings inside one process; no verdict.

    Raises:
        UsageError: the request cannot be run, or the lever cannot be switched inside a process.
        StoreError: the record cannot be written.
    """
    where = pipeline.home()
    with Registry.open(where.registry) as registry:
        record = screen_run.run(request, settings, where, registry, listener)
    path = screen_run.save(where, record)
    path.with_suffix(".md").write_text(order_render.markdown(order_view.of_screen(record)))
    return record


def _winners_run(where: Home, family: FamilyRecord) -> RunRecord | None:
    """The winner's run that says it was chosen in this selection, if it has begun."""
    for run_id in reversed(spool_reader.run_ids(where.runs)):
        record = spool_reader.load(where.runs, run_id).record
        if any(f"selection {family.family_id} " in text for text in record.warnings):
            return record
    return None


def _save(where: Home, family: FamilyRecord) -> None:
    path = family_store.save(where, family)
    path.with_suffix(".md").write_text(order_render.markdown(order_view.of_family(family)))
