"""Selections among several settings, read as evidence of a campaign's lever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from experiments import spool_reader
from experiments.campaign.place import Place
from experiments.defaults import DefaultState
from experiments.family import store as family_store
from experiments.family.records import FamilyRecord
from experiments.home import Home
from experiments.records import Outcome
from experiments.requests import AbRequest
from experiments.run_record import RunRecord
from levers.base import Lever
from levers.errors import StoreError, UnknownName
from levers.source import source_digest

CLOSING = (Outcome.GATED_OFF.value, Outcome.TERMINAL.value)
"""What a selection in which no setting is left may say to close its lever."""


def latest(place: Place, home: Home, lever: Lever, able: Sequence[str]) -> FamilyRecord | None:
    """The last selection among these settings in this scope, with the present stack."""
    return next(
        (one for one in _selections(home, lever.name) if _fits(one, place, home, lever, able)), None
    )


def winner(
    place: Place, home: Home, lever: Lever, able: Sequence[str], states: Sequence[DefaultState]
) -> DefaultState | None:
    """The state of a selection's winner, where its run on fresh pairs gave a valid verdict."""
    found = latest(place, home, lever, able)
    if found is None or found.winner is None:
        return None
    for state in states:
        valid = state.outcome is not None and "stale" not in state.flags
        if state.scope.setting == found.winner and valid and state.decided_at >= found.created_at:
            return state
    return None


def closed(place: Place, home: Home, lever: Lever, able: Sequence[str]) -> FamilyRecord | None:
    """A selection in which no setting was left, and each was closed."""
    found = latest(place, home, lever, able)
    if found is None or found.winner is not None or found.outcome not in CLOSING:
        return None
    return found


def unfinished(home: Home, request: AbRequest, able: Sequence[str]) -> str:
    """The newest selection among exactly these settings that can be gone on with; empty if none.

    It is the same request but for the limits of this sitting; one of another stack is found out
    when it is gone on with.
    """
    for family_id in reversed(family_store.ids(home)):
        head, found = family_store.begun(home, family_id), family_store.found(home, family_id)
        if head is None or (found is not None and (found.winner is None or found.winner_run)):
            continue
        asked = replace(head.request, budget_s=request.budget_s, cand=request.cand)
        if asked == request and [name for name, _ in head.runs] == list(able):
            return family_id
    return ""


def _selections(home: Home, lever: str) -> Iterator[FamilyRecord]:
    """The stored selections of a lever, newest first."""
    for family_id in reversed(family_store.ids(home)):
        found = family_store.found(home, family_id)
        if found is not None and found.lever == lever:
            yield found


def _fits(found: FamilyRecord, place: Place, home: Home, lever: Lever, able: Sequence[str]) -> bool:
    """Whether a selection covers these settings, in this scope and with the present stack."""
    if not set(able) <= {one.setting for one in found.settings} or found.ref != "off":
        return False
    try:
        record = _evidence(home, found)
    except (StoreError, UnknownName):
        return False
    here = record.environment
    return (
        dict(record.spec.parameters) == dict(place.parameters)
        and here.device_kind == place.device_kind
        and (not place.versions or dict(here.versions) == dict(place.versions))
        and record.spec.levers_source_digest == source_digest(lever)
    )


def _evidence(home: Home, found: FamilyRecord) -> RunRecord:
    """The evidence of one of its settings, which says scope and stack of all."""
    folder = family_store.folder(home, found.family_id)
    return spool_reader.load(folder, found.settings[0].run_id).record
