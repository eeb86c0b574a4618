"""What is put beside a stored run: invalidations, overrides, and whether MLflow holds it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, delete, insert, select

from experiments.defaults import Override
from experiments.evidence import Scope
from experiments.registry.rows import override_of, refresh_state, scope_of
from experiments.registry.tables import (
    CHECKS,
    DEFAULT_STATES,
    INVALIDATIONS,
    MIRRORS,
    OVERRIDES,
    RUNS,
)
from experiments.registry.views import Beside, runs_query
from experiments.requests import Standing
from experiments.values import Value, digest_of
from levers.errors import UsageError

ERROR_CHARACTERS = 2000
"""How much of a mirror's last error is kept."""


class Invalidation(Value):
    """What an invalidation did.

    Attributes:
        runs: the runs that are now marked, the asked ones first.
        dependents: those among them that rest on a cached check of an asked run.
        already: those among them that were marked before, and keep the reason given then.
        changed: scope, state before, state after, for each default state that changed.
        measured_with: runs in which a lever was on because of a verdict that has now changed; their
            ON set no longer holds, so they show as unbound.
    """

    runs: tuple[str, ...]
    dependents: tuple[str, ...] = ()
    already: tuple[str, ...] = ()
    changed: tuple[tuple[str, str, str], ...] = ()
    measured_with: tuple[str, ...] = ()


class MirrorNote(Value):
    """How an attempt to mirror a run ended; without an ``error`` MLflow now holds ``digest``."""

    run_id: str
    uri: str
    digest: str
    mlflow_run_id: str = ""
    error: str = ""
    tried_at: str


class Ended(NamedTuple):
    """A run that ended; ``version`` changes with its content and with the marks beside it."""

    run_id: str
    lever: str
    version: str


def _signed(what: str, name: str, reason: str) -> None:
    if not name.strip() or not reason.strip():
        raise UsageError(
            f"{what} needs a name and a reason",
            cure="give --name and --reason: both are shown wherever the verdict is",
        )


def invalidate(
    connection: Connection, run_ids: Sequence[str], *, reason: str, name: str, at: str
) -> Invalidation:
    """Mark runs, and those that rest on their checks; draw the default states again."""
    _signed("an invalidation", name, reason)
    asked = tuple(dict.fromkeys(run_ids))
    dependents = _resting_on(connection, asked)
    words = dict.fromkeys(asked, reason)
    words |= {run_id: f"rests on a check of run {of}: {reason}" for run_id, of in dependents}
    marked = set(connection.scalars(select(INVALIDATIONS.c.run_id)))
    rows = [
        {"run_id": run_id, "reason": text, "name": name, "at": at}
        for run_id, text in words.items()
        if run_id not in marked
    ]
    if rows:
        connection.execute(insert(INVALIDATIONS), rows)
    changed = _redraw(connection, tuple(words))
    return Invalidation(
        runs=tuple(words),
        dependents=tuple(run_id for run_id, _ in dependents),
        already=tuple(run_id for run_id in words if run_id in marked),
        changed=tuple((str(scope), was, now) for scope, was, now in changed),
        measured_with=_measured_with(connection, [scope for scope, _, _ in changed]),
    )


def _resting_on(connection: Connection, asked: Sequence[str]) -> list[tuple[str, str]]:
    """Runs that took a check from the cache, and the asked run that had computed it."""
    own = CHECKS.alias("own")
    query = (
        select(CHECKS.c.run_id, own.c.run_id)
        .join(own, and_(own.c.digest == CHECKS.c.digest, own.c.name == CHECKS.c.name))
        .where(own.c.run_id.in_(asked), own.c.cached.is_(False), own.c.digest != "")
        .where(CHECKS.c.cached.is_(True), CHECKS.c.run_id.not_in(asked))
        .order_by(CHECKS.c.run_id)
    )
    found: dict[str, str] = {}
    for run_id, of in connection.execute(query):
        found.setdefault(run_id, of)
    return list(found.items())


def _redraw(connection: Connection, run_ids: Sequence[str]) -> list[tuple[Scope, str, str]]:
    """Draw the states of the runs' scopes again: those that changed, before and after."""
    keys = select(RUNS.c.scope_key).where(RUNS.c.run_id.in_(run_ids))
    query = select(DEFAULT_STATES).where(DEFAULT_STATES.c.scope_key.in_(keys))
    changed = []
    for row in connection.execute(query).all():
        scope = scope_of(row)
        refresh_state(connection, scope)
        again = select(DEFAULT_STATES.c.state).where(DEFAULT_STATES.c.scope_key == scope.key)
        now = str(connection.scalar(again))
        if now != row.state:
            changed.append((scope, str(row.state), now))
    return changed


def _measured_with(connection: Connection, scopes: Sequence[Scope]) -> tuple[str, ...]:
    """Runs of the same work and device kind whose ON set holds a lever of these scopes."""
    found = []
    for scope in scopes:
        query = select(RUNS.c.run_id, RUNS.c.on_set).where(
            RUNS.c.workload == scope.workload, RUNS.c.device_kind == scope.device_kind
        )
        name = f"{scope.lever}={scope.setting}"
        found += [run_id for run_id, on_set in connection.execute(query) if name in on_set]
    return tuple(sorted(set(found)))


def override(connection: Connection, scope: Scope, said: Override) -> None:
    """Write a person's word on a scope; the newest is in force."""
    _signed("an override", said.name, said.reason)
    if override_of(connection, scope.key) == said:
        return
    connection.execute(insert(OVERRIDES), [{"scope_key": scope.key, **said.model_dump()}])
    refresh_state(connection, scope)


def note_mirror(connection: Connection, note: MirrorNote) -> None:
    """Write down how an attempt ended; a failed one keeps the run in the outbox."""
    mine = and_(MIRRORS.c.run_id == note.run_id, MIRRORS.c.uri == note.uri)
    earlier = connection.execute(select(MIRRORS).where(mine)).mappings().first()
    attempts = (earlier["attempts"] if earlier else 0) + 1
    failed = bool(note.error)
    values = {
        "run_id": note.run_id,
        "uri": note.uri,
        "digest": (earlier["digest"] if earlier else "") if failed else note.digest,
        "mlflow_run_id": note.mlflow_run_id or (earlier["mlflow_run_id"] if earlier else ""),
        "attempts": attempts,
        "last_error": note.error[:ERROR_CHARACTERS],
        "tried_at": note.tried_at,
    }
    connection.execute(delete(MIRRORS).where(mine))
    connection.execute(insert(MIRRORS), [values])


def unmirrored(connection: Connection, uri: str) -> tuple[str, ...]:
    """The ended runs whose present content is not known to be in MLflow at ``uri``."""
    same = and_(MIRRORS.c.run_id == RUNS.c.run_id, MIRRORS.c.uri == uri)
    query = (
        select(RUNS.c.run_id)
        .outerjoin(MIRRORS, and_(same, MIRRORS.c.digest == RUNS.c.content_digest))
        .where(RUNS.c.status != "running", MIRRORS.c.run_id.is_(None))
        .order_by(RUNS.c.created_at, RUNS.c.run_id)
    )
    return tuple(connection.scalars(query))


def ended(connection: Connection) -> tuple[Ended, ...]:
    """The ended runs, oldest first.

    What stands beside a run (invalidated, overridden, confirmed) shows on its page too, so it makes
    a new version of it.
    """
    ordered = runs_query().where(RUNS.c.status != "running")
    beside = Beside(connection, None)
    found = []
    for row in connection.execute(ordered.order_by(RUNS.c.created_at, RUNS.c.run_id)).mappings():
        version = _version(row["content_digest"], beside.standing(row))
        found.append(Ended(row["run_id"], row["lever"], version))
    return tuple(found)


def _version(content: str, standing: Standing) -> str:
    """The content's digest alone where nothing stands beside it."""
    marks = (standing.invalidated, standing.override, standing.confirmed)
    return digest_of(json.dumps([content, *marks])) if any(marks) else content
