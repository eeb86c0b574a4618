"""What the registry shows of a run or a scope, from its rows (no transaction is opened here)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, select

from experiments.defaults import Current, DefaultState, Override, derive_state, standing_of
from experiments.evidence import VERDICTS, Evidence, Scope
from experiments.registry.rows import (
    evidence_by_key,
    evidence_from,
    evidence_of,
    override_of,
    overrides_by_key,
    scope_of,
)
from experiments.registry.tables import (
    DEFAULT_STATES,
    INVALID_BECAUSE,
    INVALIDATIONS,
    RUN_FIELDS,
    RUNS,
)
from experiments.requests import HistoryRow, Standing


def runs_query() -> Select[Any]:
    """The runs without their records, with the reason where one was invalidated."""
    joined = INVALIDATIONS.c.run_id == RUNS.c.run_id
    return select(*RUN_FIELDS, INVALID_BECAUSE).select_from(RUNS).outerjoin(INVALIDATIONS, joined)


def state_of(connection: Connection, scope: Scope, current: Current | None) -> DefaultState:
    """The default state of a scope, compared with what runs now."""
    override = override_of(connection, scope.key)
    return derive_state(scope, evidence_of(connection, scope), override, current)


def states_of(
    connection: Connection, scopes: Sequence[Scope], current: Current | None
) -> tuple[DefaultState, ...]:
    """The default states of many scopes, as :func:`state_of` one by one, in two queries."""
    evidence = evidence_by_key(connection, scopes)
    overrides = overrides_by_key(connection)
    return tuple(
        derive_state(scope, evidence[scope.key], overrides.get(scope.key), current)
        for scope in scopes
    )


class Beside:
    """What stands beside runs; each scope is read once, however many of its runs are shown."""

    def __init__(self, connection: Connection, current: Current | None) -> None:
        self.connection, self.current = connection, current
        self.scopes: dict[str, tuple[Scope, tuple[Evidence, ...], Override | None] | None] = {}

    def standing(self, row: Mapping[Any, Any]) -> Standing:
        """What stands beside a run; one that decides nothing can still be invalidated."""
        known = None
        if row["kind"] == "ab" and row["outcome"] in VERDICTS:
            known = self._scope(row["scope_key"])
        if known is None:
            return Standing(invalidated=row["invalid_because"] or "")
        scope, evidence, override = known
        return standing_of(evidence_from(row, scope), evidence, override, self.current)

    def _scope(self, key: str) -> tuple[Scope, tuple[Evidence, ...], Override | None] | None:
        if key not in self.scopes:
            query = select(DEFAULT_STATES).where(DEFAULT_STATES.c.scope_key == key)
            row = self.connection.execute(query).first()
            scope = scope_of(row) if row is not None else None
            self.scopes[key] = None
            if scope is not None:
                override = override_of(self.connection, key)
                self.scopes[key] = scope, evidence_of(self.connection, scope), override
        return self.scopes[key]


def history_row(row: Mapping[Any, Any], standing: Standing) -> HistoryRow:
    """A row of ``runs`` as shown in a list."""
    same = ("run_id", "created_at", "lever", "ref", "cand", "workload", "device_kind", "status")
    return HistoryRow(
        **{name: row[name] for name in same},
        outcome=row["outcome"] or "",
        reason=row["reason"] or "",
        axis=row["axis"],
        effect=row["effect"],
        lower=row["lower"],
        upper=row["upper"],
        pairs=row["pairs"],
        beside=tuple(row["on_set"]),
        standing=standing,
    )
