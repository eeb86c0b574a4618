from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import event, text
from support import records_factory as factory

from experiments.registry import engine as registry_engine
from experiments.registry.store import Registry
from levers.errors import StoreError


def pragma(registry: Registry, statement: str) -> None:
    """Run a statement on each new connection, so that SQLite itself raises the fault."""

    @event.listens_for(registry.store.engine, "connect")
    def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(statement)


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough" * 200, b"\x00" * 9000]
)
def test_a_damaged_registry_is_named_with_the_cure_and_left_untouched(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"registry\.db.*(levergate import|LEVERGATE_HOME)"):
        Registry.open(path)
    assert path.read_bytes() == content
    assert not list(tmp_path.glob("*-wal"))


def test_a_registry_damaged_inside_is_named_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with Registry.open(path) as registry:
        registry.save(factory.default_on())
        with registry.store.reading() as connection:
            connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    data = bytearray(path.read_bytes())
    data[4096:] = b"\x5a" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"damaged.*levergate import"):
        Registry.open(path).history()
    assert path.read_bytes() == data


def test_a_registry_of_a_newer_version_is_named_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with Registry.open(path) as registry, registry.store.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0099'"))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer levergate.*0099.*upgrade levergate"):
        Registry.open(path)
    assert path.read_bytes() == before


def test_a_record_of_a_newer_version_is_named_with_the_cure(tmp_path: Path) -> None:
    record = factory.default_on().model_copy(update={"schema_version": 99})
    with Registry.open(tmp_path / "registry.db") as registry:
        registry.save(record)
        with pytest.raises(StoreError, match=r"schema version 99.*upgrade levergate"):
            registry.load(record.run_id)


def test_a_damaged_record_is_named_with_the_cure(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        registry.save(factory.default_on())
        with registry.store.writing() as connection:
            connection.execute(text("UPDATE runs SET record = '{}'"))
        with pytest.raises(StoreError, match=r"cannot be read.*bundle"):
            registry.load("2026")


def test_a_database_of_another_program_is_left_untouched(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"another program.*theirs"):
        Registry.open(path)
    assert path.read_bytes() == before


def test_a_full_disk_is_named_with_the_cure_and_loses_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        registry.save(factory.default_on())
        pragma(registry, "PRAGMA max_page_count = 1")
        more = factory.regression().model_copy(update={"run_id": "more"})
        with pytest.raises(StoreError, match=r"no room.*levergate import"):
            registry.save(more)
        assert registry.count() == 1


def test_a_read_only_registry_is_named_with_the_cure(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        pragma(registry, "PRAGMA query_only = ON")
        with pytest.raises(StoreError, match=r"cannot be written.*LEVERGATE_HOME"):
            registry.save(factory.default_on())


def test_in_a_read_only_folder_the_runs_can_still_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a folder with spaces" / "registry.db"
    with Registry.open(path) as registry:
        registry.save(factory.default_on())
    monkeypatch.setattr(registry_engine.os, "access", lambda *_: False)
    with Registry.open(path) as registry:
        assert registry.load("2026") == factory.default_on()
        with pytest.raises(StoreError, match="cannot be written"):
            registry.save(factory.default_on().model_copy(update={"run_id": "more"}))


def test_a_folder_that_cannot_be_made_is_named_with_the_cure() -> None:
    with pytest.raises(StoreError, match="LEVERGATE_HOME"):
        Registry.open(Path("/proc/no/registry.db"))


def test_a_writer_that_holds_the_lock_for_too_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_engine, "BUSY_TIMEOUT_S", 0.2)
    path = tmp_path / "registry.db"
    with Registry.open(path) as registry:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(StoreError, match=r"locked by another process.*try again"):
                registry.save(factory.default_on())
            assert registry.count() == 0
        finally:
            other.close()
        assert registry.save(factory.default_on()) == "stored"


def test_a_writer_waits_for_another_one(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with Registry.open(path) as registry:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.5, other.execute, ["COMMIT"])
        release.start()
        assert registry.save(factory.default_on()) == "stored"
        release.join()
        other.close()


def test_a_registry_url_without_its_driver_is_named_with_the_cure() -> None:
    with pytest.raises(StoreError, match=r"cannot be used.*driver"):
        Registry.open("nosuchdatabase://host/name")
