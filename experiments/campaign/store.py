"""The registry's table of campaign rows: save one, find the last of a campaign, mark one closed."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, String, Table, Text, delete, insert, select

from experiments.campaign.records import CampaignRow
from experiments.registry.engine import Store
from experiments.registry.stored import read_stored
from experiments.registry.tables import METADATA

CAMPAIGN_ROWS = Table(
    "campaign_rows",
    METADATA,
    Column("row_id", String(64), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("workload", String(128), nullable=False),
    Column("device_kind", String(128), nullable=False),
    Column("binding", String(64), nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("closed_at", String(32), nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("record", Text, nullable=False),
    Index("ix_campaign_rows_name_created_at", "name", "created_at"),
)
"""One line a drawn row: the history of a campaign, of which the last one is in force."""


def save(store: Store, row: CampaignRow) -> None:
    """Store a row; saving it again replaces it, as when it is closed."""
    values = {
        "row_id": row.row_id,
        "name": row.name,
        "state": row.state,
        "workload": row.workload,
        "device_kind": row.device_kind,
        "binding": row.binding,
        "created_at": row.created_at,
        "closed_at": row.closed_at,
        "schema_version": row.schema_version,
        "record": row.model_dump_json(),
    }
    with store.writing() as connection:
        connection.execute(delete(CAMPAIGN_ROWS).where(CAMPAIGN_ROWS.c.row_id == row.row_id))
        connection.execute(insert(CAMPAIGN_ROWS), [values])


def latest(store: Store, name: str) -> CampaignRow | None:
    """The last row of a campaign, or None where it was never drawn.

    Raises:
        StoreError: it is damaged, or from a newer version.
    """
    found = rows(store, name, limit=1)
    return found[0] if found else None


def rows(store: Store, name: str, limit: int | None = None) -> tuple[CampaignRow, ...]:
    """The rows of a campaign, newest first.

    Raises:
        StoreError: one is damaged, or from a newer version.
    """
    query = (
        select(CAMPAIGN_ROWS.c.record, CAMPAIGN_ROWS.c.schema_version)
        .where(CAMPAIGN_ROWS.c.name == name)
        .order_by(CAMPAIGN_ROWS.c.created_at.desc(), CAMPAIGN_ROWS.c.row_id.desc())
        .limit(limit)
    )
    with store.reading() as connection:
        found = connection.execute(query).all()
    return tuple(_read(str(one.record), int(one.schema_version)) for one in found)


def _read(record: str, schema_version: int) -> CampaignRow:
    cure = "draw it again with levergate campaign run"
    return read_stored(CampaignRow, record, schema_version, "a stored campaign row", cure)
