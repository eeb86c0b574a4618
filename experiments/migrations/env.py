"""Entry point of alembic: runs the migrations on the connection that the registry hands over."""

from __future__ import annotations

from alembic import context

from experiments.registry.tables import METADATA


def run() -> None:
    """Migrate in the caller's transaction, in batch mode, since SQLite cannot alter a table."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=METADATA,
        render_as_batch=True,
        transactional_ddl=True,
    )
    context.run_migrations()


run()
