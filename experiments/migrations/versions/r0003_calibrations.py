"""The A/A calibrations of each machine and workload."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "calibrations",
        sa.Column("calibration_id", sa.String(64), nullable=False),
        sa.Column("place_key", sa.String(16), nullable=False),
        sa.Column("workload", sa.String(128), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("device_kind", sa.String(128), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("pairs", sa.Integer(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("calibration_id", name="pk_calibrations"),
    )
    op.create_index(
        "ix_calibrations_place_key_created_at", "calibrations", ["place_key", "created_at"]
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("calibrations")
