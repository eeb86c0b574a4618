"""The first registry: runs with their samples, effects, checks, decisions and default states."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _run_id() -> sa.Column[str]:
    return sa.Column("run_id", sa.String(64), nullable=False)


def _key(table: str, *columns: str) -> tuple[sa.Constraint, ...]:
    """The primary key, and the run that a row goes away with."""
    return (
        sa.PrimaryKeyConstraint("run_id", *columns, name=f"pk_{table}"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name=f"fk_{table}_run_id_runs", ondelete="CASCADE"
        ),
    )


def upgrade() -> None:
    """Create the tables."""
    _runs()
    _measured()
    _decided()


def _runs() -> None:
    op.create_table(
        "runs",
        _run_id(),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("lever", sa.String(128), nullable=False),
        sa.Column("ref", sa.String(64), nullable=False),
        sa.Column("cand", sa.String(64), nullable=False),
        sa.Column("workload", sa.String(128), nullable=False),
        sa.Column("scope_key", sa.String(16), nullable=False),
        sa.Column("device_kind", sa.String(128), nullable=False),
        sa.Column("outcome", sa.String(16)),
        sa.Column("reason", sa.String(32)),
        sa.Column("parity_class", sa.String(16)),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("place", sa.String(255), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("on_set", sa.JSON(), nullable=False),
        sa.Column("lever_digest", sa.String(64), nullable=False),
        sa.Column("plan_digest", sa.String(64), nullable=False),
        sa.Column("content_digest", sa.String(16), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    op.create_index("ix_runs_lever_created_at", "runs", ["lever", "created_at"])
    op.create_index("ix_runs_scope_key", "runs", ["scope_key"])


def _measured() -> None:
    op.create_table(
        "samples",
        _run_id(),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("axis", sa.String(128), nullable=False),
        sa.Column("pair", sa.Integer(), nullable=False),
        sa.Column("arm", sa.String(16), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float()),
        *_key("samples", "number", "axis"),
    )
    op.create_table(
        "effects",
        _run_id(),
        sa.Column("look", sa.Integer(), nullable=False),
        sa.Column("axis", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.Column("estimate", sa.Float()),
        sa.Column("lower", sa.Float()),
        sa.Column("upper", sa.Float()),
        sa.Column("nominal_p", sa.Float()),
        *_key("effects", "look", "axis"),
    )
    op.create_table(
        "checks",
        _run_id(),
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("passed", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("worst", sa.Text(), nullable=False),
        sa.Column("strongest", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("cached", sa.Boolean(), nullable=False),
        *_key("checks", "name"),
    )


def _decided() -> None:
    op.create_table(
        "decisions",
        _run_id(),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("axes", sa.JSON(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("smallest_visible", sa.Float()),
        *_key("decisions"),
    )
    op.create_table(
        "default_states",
        sa.Column("scope_key", sa.String(16), nullable=False),
        sa.Column("lever", sa.String(128), nullable=False),
        sa.Column("setting", sa.String(64), nullable=False),
        sa.Column("ref", sa.String(64), nullable=False),
        sa.Column("workload", sa.String(128), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("device_kind", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("confirmed_by", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("scope_key", name="pk_default_states"),
    )
    op.create_index("ix_default_states_lever", "default_states", ["lever"])


def downgrade() -> None:
    """Drop the tables."""
    tables = ("default_states", "decisions", "checks", "effects", "samples", "runs")
    for table in tables:
        op.drop_table(table)
