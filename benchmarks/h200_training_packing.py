"""The commands of :mod:`.h200_training`, and its state, which travels as one file."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

STOPPING_S = 25.0
"""An interrupted command ends its processes within this."""

NOT_KEPT = ("arms", "work", "mlruns", "mlartifacts")
"""Folders of a home that do not travel: the arms' compile caches, files of processes that ran. The
oracles' caches do, so that another machine of the kind need not compile them anew."""


def within(
    words: Sequence[str], variables: Mapping[str, str], log: Any, limit_s: float
) -> int | None:
    """Run a command; at the limit interrupt it, so that it can go on later, and give None."""
    process = subprocess.Popen(
        words, cwd=ROOT, env=variables, stdout=log, stderr=log, process_group=0
    )
    try:
        return process.wait(timeout=max(1.0, limit_s))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=STOPPING_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None


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
