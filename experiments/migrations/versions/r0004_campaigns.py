"""The drawn rows of campaigns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "campaign_rows",
        sa.Column("row_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("workload", sa.String(128), nullable=False),
        sa.Column("device_kind", sa.String(128), nullable=False),
        sa.Column("binding", sa.String(64), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("closed_at", sa.String(32), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("row_id", name="pk_campaign_rows"),
    )
    op.create_index("ix_campaign_rows_name_created_at", "campaign_rows", ["name", "created_at"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("campaign_rows")
