"""What the registry shows of a run or a scope, from its rows (no transaction is opened here)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Select, select

from experiments.defaults import Current, DefaultState, derive_state, standing_of
from experiments.evidence import Scope
from experiments.registry_rows import evidence_from, evidence_of, override_of, scope_of
from experiments.registry_tables import DEFAULT_STATES, INVALIDATIONS, RUNS
from experiments.requests import HistoryRow, Standing


def runs_query() -> Select[Any]:
    """All columns of the runs, with the reason where one was invalidated."""
    return select(RUNS, INVALIDATIONS.c.reason.label("invalid_because")).outerjoin(
        INVALIDATIONS, INVALIDATIONS.c.run_id == RUNS.c.run_id
    )


def state_of(connection: Connection, scope: Scope, current: Current | None) -> DefaultState:
    """The default state of a scope, compared with what runs now."""
    override = override_of(connection, scope.key)
    return derive_state(scope, evidence_of(connection, scope), override, current)


def standing_beside(
    connection: Connection, row: Mapping[Any, Any], current: Current | None
) -> Standing:
    """What stands beside a run; one that decides nothing can still be invalidated."""
    scope = None
    if row["kind"] == "ab" and row["outcome"] in ("default-ON", "gated-OFF", "terminal"):
        query = select(DEFAULT_STATES).where(DEFAULT_STATES.c.scope_key == row["scope_key"])
        found = connection.execute(query).first()
        scope = scope_of(found) if found is not None else None
    if scope is None:
        return Standing(invalidated=row["invalid_because"] or "")
    override = override_of(connection, scope.key)
    return standing_of(evidence_from(row, scope), evidence_of(connection, scope), override, current)


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
        standing=standing,
    )
