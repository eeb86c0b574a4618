"""Opens the registry's database: made once, migrated, and every fault named with its cure.

A SQLite file runs in WAL mode with foreign keys, and a writer takes its lock at the start of the
transaction (``BEGIN IMMEDIATE``): two writers wait for each other instead of failing half-way.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import NullPool

from experiments.migrations import HEAD, REVISIONS
from levers.errors import StoreError

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another one; a save takes milliseconds."""

LOCK_TIMEOUT_S = 120.0
"""How long to wait for the process that makes or migrates the database."""

STORED_REVISION = """
SELECT version_num FROM alembic_version
WHERE EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'runs')
"""
"""The revision of a SQLite registry; none in another program's database."""

_CURES = (
    (("file is not a database", "malformed"), "is damaged", "it was left untouched: move it away, "
     "and take the runs in again with 'levergate import' from their bundles"),
    (("readonly", "read-only"), "cannot be written", "make it and its folder writable, or set "
     "LEVERGATE_HOME to a folder that is"),
    (("disk is full", "no space left"), "has no room", "free some disk space and run 'levergate "
     "import' on the run's bundle"),
    (("disk i/o error",), "cannot be read or written", "check the disk and its free space, or set "
     "LEVERGATE_HOME to a folder on another one"),
    (("unable to open",), "cannot be opened", "check that its folder exists and is writable, or "
     "set LEVERGATE_HOME to one that is"),
    (("locked",), "is locked by another process", "try again once it has ended; the run's bundle "
     "is kept, and 'levergate import' takes it in"),
)  # fmt: skip


class Store:
    """An engine with the two ways to use it: ``reading`` and ``writing``, one transaction each."""

    def __init__(self, target: Path | str) -> None:
        self.name = str(target)
        self.path = _sqlite_path(target)
        self.engine = _sqlite_engine(self.path) if self.path else _url_engine(str(target))

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read transaction.

        Raises:
            StoreError: the database cannot be read; names the cure.
        """
        with self.explained(), self.engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A write transaction: all of it is stored, or nothing.

        Raises:
            StoreError: the database cannot be written; names the cure.
        """
        with (
            self.explained(),
            self.engine.connect().execution_options(levergate_write=True) as connection,
            connection.begin(),
        ):
            yield connection

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the database's own errors into a StoreError that says what to do."""
        try:
            yield
        except DBAPIError as error:
            raise self.fault(str(error.orig)) from error
        except (sqlite3.Error, OSError) as error:
            raise self.fault(str(error)) from error

    def fault(self, said: str) -> StoreError:
        """The error for what the database said."""
        for phrases, what, cure in _CURES:
            if any(phrase in said.lower() for phrase in phrases):
                return StoreError(f"the registry {self.name} {what} ({said})", cure=cure)
        return StoreError(
            f"the registry {self.name} failed: {said}",
            cure="check the file or server, or set LEVERGATE_HOME to another folder",
        )

    def prepare(self) -> None:
        """Make the database if there is none, and bring it to this version's revision.

        Raises:
            StoreError: it is damaged, from a newer version, or another program's.
        """
        if self.path is not None and self.path.is_dir():
            raise StoreError(
                f"the registry {self.name} is a folder, where the database file should be",
                cure="move the folder away, or set LEVERGATE_HOME to another folder",
            )
        with self.explained():
            if self._is_current() or self._revision() == HEAD:
                return
            with self._making():
                if self._revision() != HEAD:
                    self._migrate()

    def _is_current(self) -> bool:
        """Whether it says so itself: the usual case, asked without reflection of its tables."""
        if self.path is None or not self.path.is_file():
            return False
        with self.engine.connect() as connection:
            try:
                return bool(connection.scalar(text(STORED_REVISION)) == HEAD)
            except OperationalError:
                return False  # empty or another program's: the slow look finds out which

    def _revision(self) -> str | None:
        """The stored revision; None for an empty database, and nothing is created by asking."""
        if self.path is not None and not (self.path.exists() and self.path.stat().st_size):
            return None
        with self.engine.connect() as connection:
            tables = inspect(connection).get_table_names()
            if not tables:
                return None
            if "alembic_version" not in tables or "runs" not in tables:
                raise StoreError(
                    f"{self.name} is a database of another program (tables: "
                    f"{', '.join(sorted(tables)[:5])})",
                    cure="it was left untouched: set LEVERGATE_HOME to a folder of its own",
                )
            found = str(connection.scalar(text("SELECT version_num FROM alembic_version")))
        if found not in REVISIONS:
            raise StoreError(
                f"the registry {self.name} was written by a newer levergate (revision {found}; "
                f"this one knows up to {HEAD})",
                cure="upgrade levergate, or set LEVERGATE_HOME to another folder",
            )
        return found

    @contextlib.contextmanager
    def _making(self) -> Iterator[None]:
        """One process makes or migrates the file; the others wait here."""
        from filelock import FileLock, Timeout

        if self.path is None:
            yield
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(f"{self.path}.lock", timeout=LOCK_TIMEOUT_S):
                yield
        except Timeout as error:
            raise StoreError(
                f"the registry {self.name} is being made by another process for too long",
                cure=f"end that process, remove {self.path}.lock and try again",
            ) from error

    def _migrate(self) -> None:
        from alembic import command
        from alembic.config import Config

        if self.path is not None:
            with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S)) as raw:
                raw.execute("PRAGMA journal_mode=WAL")
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
        config.set_main_option("path_separator", "os")
        config.set_main_option("version_locations", str(_versions()))
        options = {"levergate_write": True, "levergate_migrating": True}
        with (
            self.engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(7236917)"))
            config.attributes["connection"] = connection
            command.upgrade(config, HEAD)


def _versions() -> Path:
    return Path(__file__).parents[1] / "migrations" / "versions"


def _sqlite_path(target: Path | str) -> Path | None:
    """The file behind a path or a ``sqlite:///`` URL; None for a server."""
    if isinstance(target, Path) or "://" not in target:
        return Path(target).absolute()
    if target.startswith("sqlite:///"):
        return Path(target.removeprefix("sqlite:///")).absolute()
    return None


def _url_engine(url: str) -> Engine:
    try:
        return create_engine(make_url(url), pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise StoreError(
            f"the registry URL {url!r} cannot be used ({error})",
            cure="give a path, sqlite:///PATH or postgresql+psycopg://... with its driver",
        ) from error


def _sqlite_engine(path: Path) -> Engine:
    """No pool: a connection must not outlive a fork, and opening one takes a fraction of a ms.

    In a folder that cannot be written SQLite has no place for its WAL index, so the file is opened
    as immutable there: it can still be read.
    """
    frozen = path.exists() and not os.access(path.parent, os.W_OK)
    engine = create_engine(
        f"sqlite:///file:{quote(str(path))}?immutable=1&uri=true"
        if frozen
        else f"sqlite:///{path}",
        poolclass=NullPool,
        connect_args={"timeout": BUSY_TIMEOUT_S, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("levergate_migrating"):
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        immediate = options.get("levergate_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine
