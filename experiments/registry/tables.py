"""The tables of the registry, as the newest migration leaves them.

The record of a run is kept whole as JSON; the other tables hold what is asked of many runs at once.
Times are ISO 8601 texts in UTC, effects are log ratios (> 0 is better), and a number that is NaN is
NULL, since SQLite knows no NaN.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _run_id() -> Column[str]:
    return Column(
        "run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True
    )


RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", String(64), primary_key=True),
    Column("status", String(16), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("lever", String(128), nullable=False),
    Column("ref", String(64), nullable=False),
    Column("cand", String(64), nullable=False),
    Column("workload", String(128), nullable=False),
    Column("scope_key", String(16), nullable=False),
    Column("device_kind", String(128), nullable=False),
    Column("outcome", String(16)),
    Column("reason", String(32)),
    Column("parity_class", String(16)),
    Column("created_at", String(32), nullable=False),
    Column("host", String(255), nullable=False),
    Column("boot_id", String(64), nullable=False),
    Column("place", String(255), nullable=False),
    Column("versions", JSON, nullable=False),
    Column("on_set", JSON, nullable=False),
    Column("lever_digest", String(64), nullable=False),
    Column("plan_digest", String(64), nullable=False),
    Column("content_digest", String(16), nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("axis", String(128), nullable=False, server_default=""),
    Column("effect", Float),
    Column("lower", Float),
    Column("upper", Float),
    Column("pairs", Integer, nullable=False, server_default="0"),
    Column("record", Text, nullable=False),
    Index("ix_runs_lever_created_at", "lever", "created_at"),
    Index("ix_runs_scope_key", "scope_key"),
)
"""``axis``, ``effect``, ``lower`` and ``upper`` are the deciding axis's at the last look."""

RUN_FIELDS = tuple(column for column in RUNS.columns if column.name != "record")
"""A run without its record, which is megabytes in a list."""

SAMPLES = Table(
    "samples",
    METADATA,
    _run_id(),
    Column("number", Integer, primary_key=True),
    Column("axis", String(128), primary_key=True),
    Column("pair", Integer, nullable=False),
    Column("arm", String(16), nullable=False),
    Column("position", Integer, nullable=False),
    Column("value", Float),
)
"""One value of one axis, one arm, one pair; ``number`` is the sample's place in the run."""

EFFECTS = Table(
    "effects",
    METADATA,
    _run_id(),
    Column("look", Integer, primary_key=True),
    Column("axis", String(128), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("units", Integer, nullable=False),
    Column("estimate", Float),
    Column("lower", Float),
    Column("upper", Float),
    Column("nominal_p", Float),
)

CHECKS = Table(
    "checks",
    METADATA,
    _run_id(),
    Column("name", String(32), primary_key=True),
    Column("status", String(16), nullable=False),
    Column("passed", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("worst", Text, nullable=False),
    Column("strongest", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("cached", Boolean, nullable=False),
)

DECISIONS = Table(
    "decisions",
    METADATA,
    _run_id(),
    Column("outcome", String(16), nullable=False),
    Column("reason", String(32), nullable=False),
    Column("axes", JSON, nullable=False),
    Column("detail", Text, nullable=False),
    Column("smallest_visible", Float),
)

DEFAULT_STATES = Table(
    "default_states",
    METADATA,
    Column("scope_key", String(16), primary_key=True),
    Column("lever", String(128), nullable=False),
    Column("setting", String(64), nullable=False),
    Column("ref", String(64), nullable=False),
    Column("workload", String(128), nullable=False),
    Column("parameters", JSON, nullable=False),
    Column("device_kind", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("confirmed_by", String(64), nullable=False),
    Index("ix_default_states_lever", "lever"),
)
"""What ships in each scope, written in the transaction that changes it."""

INVALIDATIONS = Table(
    "invalidations",
    METADATA,
    _run_id(),
    Column("reason", Text, nullable=False),
    Column("name", String(255), nullable=False),
    Column("at", String(32), nullable=False),
)

INVALID_BECAUSE = (INVALIDATIONS.c.reason + " (" + INVALIDATIONS.c.name + ")").label(
    "invalid_because"
)
"""What is shown beside an invalidated run: the reason, and who gave it."""

OVERRIDES = Table(
    "overrides",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("scope_key", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("name", String(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", String(32), nullable=False),
    Index("ix_overrides_scope_key", "scope_key"),
)
"""The newest row of a scope is in force; the older ones stay as its history."""

MIRRORS = Table(
    "mirrors",
    METADATA,
    _run_id(),
    Column("uri", String(512), primary_key=True),
    Column("digest", String(16), nullable=False),
    Column("mlflow_run_id", String(64), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("last_error", Text, nullable=False),
    Column("tried_at", String(32), nullable=False),
)
"""The outbox: a run is in MLflow at ``uri`` once ``digest`` equals the run's own."""
