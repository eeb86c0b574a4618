"""The state of a driver, which travels as one file."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

NOT_KEPT = ("arms", "work", "mlruns", "mlartifacts", "streams", "oracles")
"""Folders of a home that do not travel: compile caches (15 MB packed for one model's oracle), files
of processes that ran, and decoded streams."""


def archive(path: Path, kept: Sequence[Path], root: Path) -> None:
    """Pack files and folders below a root, without what does not travel."""
    partial = path.with_suffix(".partial")
    with tarfile.open(partial, "w:gz", compresslevel=6) as file:
        for one in kept:
            if one.exists():
                file.add(one, str(one.relative_to(root)), filter=_travels)
    partial.replace(path)


def _travels(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leaves out what is not kept, and the links to the shared cache."""
    return None if member.issym() or set(Path(member.name).parts) & {*NOT_KEPT} else member


def copy_new(source: Path, target: Path) -> None:
    """Copy the files that a folder lacks or has in an older form, each whole; also those below.

    The other call writes meanwhile: what goes away under way is left out.
    """
    for path in [one for one in source.rglob("*") if one.is_file()]:
        there = target / path.relative_to(source)
        if path.suffix == ".partial":
            continue
        with contextlib.suppress(FileNotFoundError):
            if not there.exists() or there.stat().st_mtime_ns < path.stat().st_mtime_ns:
                there.parent.mkdir(parents=True, exist_ok=True)
                partial = target / f"{os.getpid()}.partial"
                shutil.copy2(path, partial)
                partial.replace(there)


def restore(packed: Path, state: Path) -> str:
    """Unpack a state where there is none yet; says what was done."""
    if (state / "journal.json").exists():
        return f"{state} holds a state already: nothing is restored"
    with tarfile.open(packed) as file:
        file.extractall(state, filter="data")
    return f"{state} is restored from {packed.name}"
