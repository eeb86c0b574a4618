"""The registry of results: save, load and query the runs, and the default state of each scope.

Stored verdicts are never changed: a decided run can be invalidated or overridden beside itself,
with a name and a reason, and both show wherever it does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from sqlalchemy import and_, delete, func, select

from experiments.defaults import Current, DefaultState, Override
from experiments.evidence import Scope
from experiments.on_set import OnSet, on_set
from experiments.registry import marks
from experiments.registry.engine import Store
from experiments.registry.rows import insert_record, scope_of
from experiments.registry.stored import read_stored
from experiments.registry.tables import DEFAULT_STATES, RUNS
from experiments.registry.views import Beside, history_row, runs_query, state_of, states_of
from experiments.requests import HistoryRow, Standing
from experiments.values import Scalar
from levers.errors import StoreError, UnknownName, UsageError

if TYPE_CHECKING:
    from experiments.run_record import RunRecord

Saved = Literal["stored", "replaced", "unchanged", "kept"]
"""``kept``: a decided run was already there, and what came was an earlier state of it."""

SHOWN_IDS = 8
"""How many run ids a message lists."""


class Registry:
    """The results in one database; every method is one transaction."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @classmethod
    def open(cls, target: Path | str) -> Registry:
        """Open the registry, making or migrating its database where needed.

        Args:
            target: path of the SQLite file (``$LEVERGATE_HOME/registry.db``) or an SQLAlchemy URL.

        Raises:
            StoreError: damaged, from a newer version, not writable; the message names the cure.
        """
        store = Store(target)
        store.prepare()
        return cls(store)

    def close(self) -> None:
        """Let go of the database."""
        self.store.engine.dispose()

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- runs --------------------------------------------------------------------------------

    def save(self, record: RunRecord) -> Saved:
        """Store a run, wholly or not at all; saving it again changes nothing.

        Raises:
            StoreError: a decided run of that id is stored with another content.
        """
        digest = record.content_digest()
        with self.store.writing() as connection:
            columns = RUNS.c.content_digest, RUNS.c.status
            query = select(*columns).where(RUNS.c.run_id == record.run_id)
            found = connection.execute(query).first()
            if found is not None and found.content_digest == digest:
                return "unchanged"
            if found is not None and found.status == "decided":
                if record.status != "decided":
                    return "kept"
                raise StoreError(
                    f"run {record.run_id} is already decided, with another content "
                    f"({found.content_digest}; this one is {digest})",
                    cure="a stored verdict is never overwritten: compare the two with "
                    "'levergate export', and use 'levergate invalidate' on the wrong one",
                )
            connection.execute(delete(RUNS).where(RUNS.c.run_id == record.run_id))
            insert_record(connection, record)
            return "stored" if found is None else "replaced"

    def load(self, run_id: str) -> RunRecord:
        """The whole record of a run, by its id or an unambiguous beginning of it.

        Raises:
            UnknownName: there is none.
            UsageError: the beginning fits several.
            StoreError: the record is from a newer version, or damaged.
        """
        from experiments.run_record import RunRecord

        full = self.resolve(run_id)
        with self.store.reading() as connection:
            columns = RUNS.c.record, RUNS.c.schema_version
            row = connection.execute(select(*columns).where(RUNS.c.run_id == full)).one()
        what = f"the record of run {full} in {self.store.name}"
        cure = "take the run in again from its bundle, into a fresh registry"
        return read_stored(RunRecord, row.record, row.schema_version, what, cure)

    def resolve(self, prefix: str) -> str:
        """The full id of a run.

        Raises:
            UnknownName: there is none.
            UsageError: the beginning fits several; the message lists them.
        """
        found = self.beginning(prefix)
        if prefix in found:
            return prefix
        if not found or not prefix:
            raise UnknownName("run", prefix, self.beginning("")[:SHOWN_IDS])
        if len(found) > 1:
            shown = ", ".join(found[:SHOWN_IDS]) + (", ..." if len(found) > SHOWN_IDS else "")
            raise UsageError(f"run {prefix!r} fits {len(found)} runs", cure=f"give more: {shown}")
        return str(found[0])

    def beginning(self, prefix: str) -> tuple[str, ...]:
        """The ids of the runs that begin so, newest first."""
        starts = RUNS.c.run_id.startswith(prefix, autoescape=True)
        newest = RUNS.c.created_at.desc(), RUNS.c.run_id.desc()
        query = select(RUNS.c.run_id).where(starts).order_by(*newest)
        with self.store.reading() as connection:
            return tuple(connection.scalars(query))

    def history(
        self,
        lever: str | None = None,
        *,
        limit: int | None = None,
        current: Current | None = None,
    ) -> tuple[HistoryRow, ...]:
        """The stored runs, newest first, each with what stands beside its verdict."""
        query = runs_query().order_by(RUNS.c.created_at.desc(), RUNS.c.run_id.desc()).limit(limit)
        if lever is not None:
            query = query.where(RUNS.c.lever == lever)
        with self.store.reading() as connection:
            rows = connection.execute(query).mappings().all()
            beside = Beside(connection, current)
            found = [history_row(row, beside.standing(row)) for row in rows]
        return tuple(one if one.status == "decided" else self._checked(one) for one in found)

    def _checked(self, row: HistoryRow) -> HistoryRow:
        """The row of an undecided run, with the class that it passed; a damaged one as it is."""
        from experiments import checked

        with contextlib.suppress(StoreError):
            return replace(row, parity=checked.class_passed(self.load(row.run_id)))
        return row

    def standing(self, run_id: str, current: Current | None = None) -> Standing:
        """What must be shown beside the verdict of a run: confirmed, stale, invalidated ..."""
        from experiments.calibration import store as calibration_store

        query = runs_query().where(RUNS.c.run_id == self.resolve(run_id))
        with self.store.reading() as connection:
            row = connection.execute(query).mappings().one()
            found = Beside(connection, current).standing(row)
            return replace(found, calibration=calibration_store.rate_beside(connection, row))

    def latest_verdicts(self, lever: str | None = None) -> tuple[HistoryRow, ...]:
        """The run that decides each scope now, newest first."""
        wanted = {state.run_id for state in self.default_states(lever)}
        return tuple(row for row in self.history(lever) if row.run_id in wanted)

    def count(self) -> int:
        """The number of stored runs."""
        with self.store.reading() as connection:
            return int(connection.scalar(select(func.count()).select_from(RUNS)) or 0)

    # --- default states ----------------------------------------------------------------------

    def default_states(
        self, lever: str | None = None, current: Current | None = None
    ) -> tuple[DefaultState, ...]:
        """The default state of every scope that has a verdict, or of one lever's."""
        query = select(DEFAULT_STATES).order_by(*DEFAULT_STATES.primary_key)
        if lever is not None:
            query = query.where(DEFAULT_STATES.c.lever == lever)
        with self.store.reading() as connection:
            scopes = [scope_of(row) for row in connection.execute(query)]
            return states_of(connection, scopes, current)

    def levers(self, beside: str | None = None) -> frozenset[str]:
        """The names of the levers that have a verdict in some scope.

        Args:
            beside: a run's id: the levers with a verdict on its workload and device alone, which
                are all that its own standing depends on.
        """
        states = DEFAULT_STATES.c
        query = select(states.lever).distinct()
        if beside is not None:
            same = states.workload == RUNS.c.workload, states.device_kind == RUNS.c.device_kind
            query = query.join(RUNS, and_(*same)).where(RUNS.c.run_id == self.resolve(beside))
        with self.store.reading() as connection:
            return frozenset(connection.scalars(query))

    def default_state(self, scope: Scope, current: Current | None = None) -> DefaultState:
        """The default state of one scope; undecided where it has no verdict."""
        with self.store.reading() as connection:
            return state_of(connection, scope, current)

    def default_on_set(
        self,
        workload: str,
        parameters: Mapping[str, Scalar],
        device_kind: str,
        current: Current | None = None,
    ) -> OnSet:
        """The levers that are default-ON for this work: the stack of a new run.

        With ``current.versions`` given, stale verdicts are left out, and named.
        """
        states = [
            state
            for state in self.default_states(current=current)
            if (state.scope.workload, state.scope.device_kind) == (workload, device_kind)
            and dict(state.scope.parameters) == dict(parameters)
        ]
        return on_set(states)

    def on_sets(self, current: Current | None = None) -> Mapping[str, tuple[str, ...]]:
        """The levers that are on for each work (:attr:`Scope.work`) that has a verdict."""
        by_work: dict[str, list[DefaultState]] = {}
        for state in self.default_states(current=current):
            by_work.setdefault(state.scope.work, []).append(state)
        return {
            work: tuple(str(one) for one in on_set(states).settings)
            for work, states in by_work.items()
        }

    def invalidate(
        self, run_ids: Sequence[str], *, reason: str, name: str, at: str
    ) -> marks.Invalidation:
        """Mark runs as no longer valid, and draw again all that was decided from them.

        Raises:
            UsageError: no name or no reason.
        """
        full = [self.resolve(run_id) for run_id in run_ids]
        with self.store.writing() as connection:
            return marks.invalidate(connection, full, reason=reason, name=name, at=at)

    def override(self, scope: Scope, said: Override) -> DefaultState:
        """Put a person's word over the verdict of a scope, shown wherever the verdict is.

        Raises:
            UsageError: no name or no reason.
        """
        with self.store.writing() as connection:
            marks.override(connection, scope, said)
            return state_of(connection, scope, None)

    # --- MLflow ------------------------------------------------------------------------------

    def note_mirror(self, mirrored: marks.MirrorNote) -> None:
        """Write down how an attempt to mirror a run ended."""
        with self.store.writing() as connection:
            marks.note_mirror(connection, mirrored)

    def unmirrored(self, uri: str) -> tuple[str, ...]:
        """The ended runs that MLflow at ``uri`` is not known to hold, oldest first."""
        with self.store.reading() as connection:
            return marks.unmirrored(connection, uri)

    def ended(self) -> tuple[marks.Ended, ...]:
        """Each run that ended, oldest first, with the version that MLflow should hold of it."""
        with self.store.reading() as connection:
            return marks.ended(connection)
