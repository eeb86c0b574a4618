from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from support import records_factory as factory

from experiments import migrations
from experiments.calibration.store import CALIBRATIONS
from experiments.campaign.store import CAMPAIGN_ROWS
from experiments.registry.store import Registry

METADATA = CALIBRATIONS.metadata
"""With the tables of every module."""
assert CAMPAIGN_ROWS.metadata is METADATA

DATABASES = Path(__file__).resolve().parents[1] / "databases"


def stored(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "registry.db"
    connection = sqlite3.connect(path)
    connection.executescript((DATABASES / name).read_text())
    connection.close()
    return path


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def test_the_known_revisions_are_the_files() -> None:
    files = [script.revision for script in scripts().walk_revisions()]
    assert tuple(reversed(files)) == migrations.REVISIONS
    assert scripts().get_heads() == [migrations.HEAD]


def test_a_fresh_registry_has_exactly_the_declared_tables(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with Registry.open(path) as registry, registry.store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_every_older_revision_has_a_stored_database() -> None:
    kept = {path.stem.removeprefix("registry_") for path in DATABASES.glob("registry_*.sql")}
    assert kept == set(migrations.REVISIONS[:-1])


@pytest.mark.parametrize("revision", migrations.REVISIONS[:-1])
def test_a_stored_old_database_is_upgraded_with_all_its_runs(tmp_path: Path, revision: str) -> None:
    path = stored(tmp_path, f"registry_{revision}.sql")
    with Registry.open(path) as registry:
        rows = registry.history()
        assert [row.run_id[-4:] for row in rows] == ["cccc", "bbbb", "aaaa"]
        assert [row.outcome for row in rows] == ["", "gated-OFF", "default-ON"]
        assert registry.load("20260301").decision == factory.default_on().decision
        assert [state.state for state in registry.default_states()] == ["on", "off"]
        with registry.store.reading() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, METADATA) == []
            assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
            assert connection.scalar(text("SELECT count(*) FROM samples")) == 80


def test_the_upgrade_fills_the_deciding_axis_from_the_stored_records(tmp_path: Path) -> None:
    with Registry.open(stored(tmp_path, "registry_0001.sql")) as registry:
        upgraded = {row.run_id: row for row in registry.history()}
        on = upgraded["20260301T090000Z-aaaa"]
        assert (on.axis, on.pairs) == ("decode/tok_s/c8", 13)
        again = registry.load(on.run_id).model_copy(update={"run_id": "again"})
        registry.save(again)
        fresh = next(row for row in registry.history() if row.run_id == "again")
        assert (on.effect, on.lower, on.upper) == (fresh.effect, fresh.lower, fresh.upper)
        assert upgraded["20260302T090000Z-bbbb"].effect is None


def test_an_upgraded_database_takes_new_marks(tmp_path: Path) -> None:
    with Registry.open(stored(tmp_path, "registry_0001.sql")) as registry:
        done = registry.invalidate(["20260301"], reason="r", name="n", at="2026-03-09")
        assert [(was, now) for _, was, now in done.changed] == [("on", "undecided")]
