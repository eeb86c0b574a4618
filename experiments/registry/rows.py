"""Records to rows of the registry, and rows back to values (no transaction is opened here)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, Select, Table, delete, insert, select

from experiments.defaults import Override, derive_state
from experiments.evidence import Evidence, Scope
from experiments.registry.tables import (
    CHECKS,
    DECISIONS,
    DEFAULT_STATES,
    EFFECTS,
    INVALID_BECAUSE,
    INVALIDATIONS,
    OVERRIDES,
    RUN_FIELDS,
    RUNS,
    SAMPLES,
)

if TYPE_CHECKING:
    from experiments.run_record import RunRecord

Values = dict[str, Any]


def insert_record(connection: Connection, record: RunRecord) -> None:
    """Write a record that is not stored yet, with all that is asked of many runs at once."""
    rows: list[tuple[Table, list[Values]]] = [
        (RUNS, [_run(record)]),
        (SAMPLES, _samples(record)),
        (EFFECTS, _effects(record)),
        (CHECKS, _checks(record)),
        (DECISIONS, _decision(record)),
    ]
    for table, values in rows:
        if values:
            connection.execute(insert(table), values)
    if record.kind == "ab" and record.status == "decided":
        refresh_state(connection, Scope.of(record))


def _run(record: RunRecord) -> Values:
    spec, here, decision = record.spec, record.environment, record.decision
    return {
        "run_id": record.run_id,
        "status": record.status,
        "kind": record.kind,
        "lever": spec.lever,
        "ref": spec.ref,
        "cand": spec.cand,
        "workload": spec.workload,
        "scope_key": Scope.of(record).key,
        "device_kind": here.device_kind,
        "outcome": decision.outcome.value if decision else None,
        "reason": decision.reason if decision else None,
        "parity_class": record.parity.parity_class.value if record.parity else None,
        "created_at": record.created_at,
        "host": here.host,
        "boot_id": here.boot_id,
        "place": here.device_uuid or here.host,
        "versions": dict(here.versions),
        "on_set": sorted(str(one) for one in spec.stack),
        "lever_digest": spec.levers_source_digest,
        "plan_digest": record.plan_digest,
        "content_digest": record.content_digest(),
        "schema_version": record.schema_version,
        "record": record.model_dump_json(),
        **_deciding(record),
    }


def _deciding(record: RunRecord) -> Values:
    """The deciding axis's effect at the last look; no figures where no look was taken."""
    found: Values = {"axis": "", "effect": None, "lower": None, "upper": None, "pairs": 0}
    if not record.looks or record.decision is None:
        return found
    found["pairs"] = record.looks[-1].pairs
    for axis in record.decision.axes[:1]:
        for effect in record.looks[-1].effects:
            if effect.axis == axis:
                figures = {"effect": effect.estimate, "lower": effect.lower, "upper": effect.upper}
                found |= {"axis": axis, **{key: _number(one) for key, one in figures.items()}}
    return found


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _samples(record: RunRecord) -> list[Values]:
    return [
        {
            "run_id": record.run_id,
            "number": number,
            "axis": axis,
            "pair": sample.pair,
            "arm": sample.arm,
            "position": sample.position,
            "value": _number(value),
        }
        for number, sample in enumerate(record.samples)
        for axis, value in sample.values.items()
    ]


def _effects(record: RunRecord) -> list[Values]:
    return [
        {
            "run_id": record.run_id,
            "look": look.index,
            "axis": one.axis,
            "kind": one.kind,
            "units": one.units,
            "estimate": _number(one.estimate),
            "lower": _number(one.lower),
            "upper": _number(one.upper),
            "nominal_p": _number(one.nominal_p),
        }
        for look in record.looks
        for one in look.effects
    ]


def _checks(record: RunRecord) -> list[Values]:
    return [
        {
            "run_id": record.run_id,
            "name": check.name,
            "status": check.status,
            "passed": check.passed,
            "total": check.total,
            "worst": check.worst,
            "strongest": check.strongest.value,
            "digest": check.digest,
            "cached": check.cached,
        }
        for check in (record.parity.checks if record.parity else ())
    ]


def _decision(record: RunRecord) -> list[Values]:
    decision = record.decision
    if decision is None:
        return []
    return [
        {
            "run_id": record.run_id,
            "outcome": decision.outcome.value,
            "reason": decision.reason,
            "axes": list(decision.axes),
            "detail": decision.detail,
            "smallest_visible": decision.smallest_visible,
        }
    ]


# --- default states --------------------------------------------------------------------------


def refresh_state(connection: Connection, scope: Scope) -> None:
    """Draw the default state of a scope again from its verdicts and store it."""
    state = derive_state(scope, evidence_of(connection, scope), override_of(connection, scope.key))
    connection.execute(delete(DEFAULT_STATES).where(DEFAULT_STATES.c.scope_key == scope.key))
    values = {
        "scope_key": scope.key,
        "lever": scope.lever,
        "setting": scope.setting,
        "ref": scope.ref,
        "workload": scope.workload,
        "parameters": dict(scope.parameters),
        "device_kind": scope.device_kind,
        "state": state.state,
        "run_id": state.run_id,
        "confirmed_by": state.confirmed_by,
    }
    connection.execute(insert(DEFAULT_STATES), [values])


def scope_of(row: Row[Any]) -> Scope:
    """The scope behind a row of ``default_states``."""
    names = ("lever", "setting", "ref", "workload", "parameters", "device_kind")
    return Scope(**{name: row._mapping[name] for name in names})


def evidence_of(connection: Connection, scope: Scope) -> tuple[Evidence, ...]:
    """The decided runs of a scope, with the reason where one was invalidated."""
    rows = connection.execute(_decided().where(RUNS.c.scope_key == scope.key)).mappings()
    return tuple(evidence_from(row, scope) for row in rows)


def evidence_by_key(
    connection: Connection, scopes: Iterable[Scope]
) -> Mapping[str, Sequence[Evidence]]:
    """The decided runs of many scopes by :attr:`Scope.key`; a scope without one has none."""
    by_key = {scope.key: scope for scope in scopes}
    found: dict[str, list[Evidence]] = {key: [] for key in by_key}
    for row in connection.execute(_decided()).mappings():
        key = row["scope_key"]
        if key in by_key:
            found[key].append(evidence_from(row, by_key[key]))
    return found


def _decided() -> Select[Any]:
    return (
        select(*RUN_FIELDS, INVALID_BECAUSE)
        .select_from(RUNS)
        .outerjoin(INVALIDATIONS, INVALIDATIONS.c.run_id == RUNS.c.run_id)
        .where(RUNS.c.kind == "ab")
        .where(RUNS.c.outcome.in_(("default-ON", "gated-OFF", "terminal")))
    )


def evidence_from(row: Mapping[Any, Any], scope: Scope) -> Evidence:
    """The evidence in a row of ``runs`` that was joined with its invalidation."""
    names = ("run_id", "outcome", "reason", "created_at", "boot_id", "place", "versions")
    return Evidence(
        **{name: row[name] for name in names},
        scope=scope,
        lever_digest=row["lever_digest"],
        on_set=tuple(row["on_set"]),
        invalidated=row["invalid_because"] or "",
    )


def override_of(connection: Connection, scope_key: str) -> Override | None:
    """The newest word of a person on a scope."""
    query = (
        select(OVERRIDES)
        .where(OVERRIDES.c.scope_key == scope_key)
        .order_by(OVERRIDES.c.number.desc())
        .limit(1)
    )
    row = connection.execute(query).mappings().first()
    return _override(row) if row is not None else None


def overrides_by_key(connection: Connection) -> Mapping[str, Override]:
    """The newest word on each scope that has one."""
    rows = connection.execute(select(OVERRIDES).order_by(OVERRIDES.c.number)).mappings()
    return {row["scope_key"]: _override(row) for row in rows}


def _override(row: Mapping[Any, Any]) -> Override:
    return Override(**{name: row[name] for name in ("state", "name", "reason", "at")})
