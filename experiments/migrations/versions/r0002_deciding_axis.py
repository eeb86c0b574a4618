"""The deciding axis of a run beside it; invalidations, overrides and the outbox to MLflow."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, fill them from the stored records, and create the new tables."""
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("axis", sa.String(128), nullable=False, server_default=""))
        runs.add_column(sa.Column("effect", sa.Float()))
        runs.add_column(sa.Column("lower", sa.Float()))
        runs.add_column(sa.Column("upper", sa.Float()))
        runs.add_column(sa.Column("pairs", sa.Integer(), nullable=False, server_default="0"))
    _fill()
    _marks()
    op.create_table(
        "mirrors",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("uri", sa.String(512), nullable=False),
        sa.Column("digest", sa.String(16), nullable=False),
        sa.Column("mlflow_run_id", sa.String(64), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.Column("tried_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "uri", name="pk_mirrors"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name="fk_mirrors_run_id_runs", ondelete="CASCADE"
        ),
    )


def _marks() -> None:
    op.create_table(
        "invalidations",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_invalidations"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name="fk_invalidations_run_id_runs", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "overrides",
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=True),
        sa.Column("scope_key", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_overrides"),
    )
    op.create_index("ix_overrides_scope_key", "overrides", ["scope_key"])


def _fill() -> None:
    """Read each stored record as plain JSON: a migration must not depend on today's classes."""
    connection = op.get_bind()
    runs = sa.table(
        "runs",
        *(sa.column(name) for name in ("run_id", "record", "axis", "effect", "lower", "upper")),
        sa.column("pairs"),
    )
    rows = connection.execute(sa.select(runs.c.run_id, runs.c.record)).all()
    for run_id, text in rows:
        found = _deciding(json.loads(text))
        if found:
            connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(**found))


def _deciding(record: dict[str, Any]) -> dict[str, Any]:
    looks, decision = record.get("looks") or [], record.get("decision") or {}
    if not looks:
        return {}
    found: dict[str, Any] = {"pairs": looks[-1]["pairs"]}
    for axis in (decision.get("axes") or [])[:1]:
        for effect in looks[-1]["effects"]:
            if effect["axis"] == axis:
                ends = {"lower": float(effect["lower"]), "upper": float(effect["upper"])}
                found |= {"axis": axis, "effect": float(effect["estimate"]), **ends}
    return found


def downgrade() -> None:
    """Drop the new tables and columns."""
    for table in ("mirrors", "overrides", "invalidations"):
        op.drop_table(table)
    with op.batch_alter_table("runs") as runs:
        for column in ("axis", "effect", "lower", "upper", "pairs"):
            runs.drop_column(column)
