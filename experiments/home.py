"""Where levergate keeps its state: ``$LEVERGATE_HOME``, the checkout, or ``./.levergate``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from levers.errors import StoreError

HOME_VARIABLE = "LEVERGATE_HOME"
LOCKS_VARIABLE = "LEVERGATE_LOCKS"

CHECKOUT = Path(__file__).resolve().parents[1]
"""The folder above the package: the project's root when levergate runs from a checkout."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one user's registry, runs, caches and MLflow store.

    Device locks are not in it: two homes on one machine share its devices, so the locks lie in one
    folder per machine, on a local disk (``$LEVERGATE_LOCKS``, by default below the temporary one).
    """

    root: Path
    device_locks: Path

    @property
    def runs(self) -> Path:
        """One folder per run: the spool."""
        return self.root / "runs"

    @property
    def cache(self) -> Path:
        """Parity results, compile caches of the arms and of the oracles, digests of weights."""
        return self.root / "cache"

    @property
    def work(self) -> Path:
        """Task and result files of the processes that run now."""
        return self.root / "work"

    @property
    def locks(self) -> Path:
        """Locks of this home's own files, such as the making of a database."""
        return self.root / "locks"

    @property
    def registry(self) -> Path:
        """The registry's SQLite file."""
        return self.root / "registry.db"

    @property
    def mlflow(self) -> Path:
        """The MLflow mirror's SQLite file."""
        return self.root / "mlflow.db"

    def make(self) -> Home:
        """Make the folders that are missing.

        Raises:
            StoreError: the home cannot be written to.
        """
        for folder in (self.root, self.runs, self.cache, self.work, self.locks, self.device_locks):
            make_folder(folder)
        return self

    def to_read(self) -> Home:
        """Make what is missing, unless there is a registry in a folder that is read-only.

        Raises:
            StoreError: there is nothing to read, and the home cannot be made.
        """
        read_only = self.registry.is_file() and not os.access(self.root, os.W_OK)
        return self if read_only else self.make()


def make_folder(folder: Path) -> Path:
    """Make a folder and those above it.

    Raises:
        StoreError: it cannot be made or written to; the message names it and the cure.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make {folder}: {error.strerror}",
            cure=f"set {HOME_VARIABLE} to a folder that can be written to",
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(
            f"{folder} cannot be written to",
            cure=f"set {HOME_VARIABLE} to a folder that can be written to",
        )
    return folder


def find(environ: Mapping[str, str], cwd: Path, checkout: Path = CHECKOUT) -> Home:
    """The home that the variables, the checkout or the current folder imply; makes nothing."""
    locks = environ.get(LOCKS_VARIABLE)
    return Home(
        root=_root(environ, cwd, checkout).resolve(),
        device_locks=Path(locks) if locks else Path(tempfile.gettempdir()) / "levergate-locks",
    )


def _root(environ: Mapping[str, str], cwd: Path, checkout: Path) -> Path:
    if environ.get(HOME_VARIABLE):
        return Path(environ[HOME_VARIABLE])
    if (checkout / "pyproject.toml").is_file() and (checkout / "cli.py").is_file():
        return checkout
    return cwd / ".levergate"
