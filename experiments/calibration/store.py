"""The registry's table of calibrations: save one, and find the last of a machine and workload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Index,
    Integer,
    String,
    Table,
    Text,
    func,
    insert,
    select,
)

from experiments.calibration.records import Calibration, place_key
from experiments.registry.engine import Store
from experiments.registry.stored import read_stored
from experiments.registry.tables import METADATA, RUNS
from experiments.requests import FalseVerdictRate
from experiments.values import Scalar

CALIBRATIONS = Table(
    "calibrations",
    METADATA,
    Column("calibration_id", String(64), primary_key=True),
    Column("place_key", String(16), nullable=False),
    Column("workload", String(128), nullable=False),
    Column("parameters", JSON, nullable=False),
    Column("device_kind", String(128), nullable=False),
    Column("host", String(255), nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("versions", JSON, nullable=False),
    Column("pairs", Integer, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("record", Text, nullable=False),
    Index("ix_calibrations_place_key_created_at", "place_key", "created_at"),
)
"""``place_key`` is a digest of workload, parameters, device kind and host."""


def save(store: Store, calibration: Calibration) -> None:
    """Store a calibration; saving it again changes nothing."""
    here = calibration.environment
    row = {
        "calibration_id": calibration.calibration_id,
        "place_key": calibration.place,
        "workload": calibration.workload,
        "parameters": dict(calibration.parameters),
        "device_kind": here.device_kind,
        "host": here.host,
        "created_at": calibration.created_at,
        "versions": dict(here.versions),
        "pairs": calibration.pairs,
        "schema_version": calibration.schema_version,
        "record": calibration.model_dump_json(),
    }
    with store.writing() as connection:
        if not _stored(connection, calibration.calibration_id):
            connection.execute(insert(CALIBRATIONS), [row])


def latest(
    connection: Connection,
    workload: str,
    parameters: Mapping[str, Scalar],
    device_kind: str,
    host: str,
    versions: Mapping[str, str],
) -> Calibration | None:
    """The last calibration of this work on this machine, one of the same stack before others.

    Raises:
        StoreError: it is damaged or from a newer version.
    """
    key = place_key(workload, parameters, device_kind, host)
    query = (
        select(CALIBRATIONS.c.record, CALIBRATIONS.c.versions, CALIBRATIONS.c.schema_version)
        .where(CALIBRATIONS.c.place_key == key)
        .order_by(CALIBRATIONS.c.created_at.desc(), CALIBRATIONS.c.calibration_id.desc())
    )
    rows = connection.execute(query).all()
    same = [row for row in rows if row.versions == dict(versions)]
    found = next(iter(same or rows), None)
    return None if found is None else _read(found.record, found.schema_version)


def rate_beside(connection: Connection, run: Mapping[Any, Any]) -> FalseVerdictRate | None:
    """The false-verdict rate of the machine and work of a row of ``runs``; None if never measured.

    The run's parameters stand in its record alone, which is read only where its machine and
    workload were calibrated at all.
    """
    mine = (
        (CALIBRATIONS.c.workload == run["workload"])
        & (CALIBRATIONS.c.device_kind == run["device_kind"])
        & (CALIBRATIONS.c.host == run["host"])
    )
    if not connection.scalar(select(func.count()).select_from(CALIBRATIONS).where(mine)):
        return None
    record = connection.scalar(select(RUNS.c.record).where(RUNS.c.run_id == run["run_id"]))
    parameters = json.loads(str(record))["spec"]["parameters"]
    place = run["workload"], parameters, run["device_kind"], run["host"]
    found = latest(connection, *place, run["versions"])
    return found.beside(run["lever"], run["versions"], run["created_at"]) if found else None


def _stored(connection: Connection, calibration_id: str) -> bool:
    query = select(CALIBRATIONS.c.calibration_id)
    return bool(connection.scalar(query.where(CALIBRATIONS.c.calibration_id == calibration_id)))


def _read(record: str, schema_version: int) -> Calibration:
    return read_stored(
        Calibration, record, schema_version, "a stored calibration", "calibrate again"
    )
