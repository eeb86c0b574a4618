"""State of :mod:`.h200_training` that travels from one machine to the next as one file."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

NOT_KEPT = ("arms", "work", "mlruns", "mlartifacts")
"""Folders of a home that do not travel: compile caches, files of processes that ran."""


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


def restore(packed: Path, state: Path) -> str:
    """Unpack a state where there is none yet; says what was done."""
    if (state / "journal.json").exists():
        return f"{state} holds a state already: nothing is restored"
    with tarfile.open(packed) as file:
        file.extractall(state, filter="data")
    return f"{state} is restored from {packed.name}"
