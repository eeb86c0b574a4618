"""A process and those below it: who dies with whom, and what is left behind (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""From ``linux/prctl.h``."""

MOST_SWEPT = 10_000
"""Processes that one sweep ends at most: something that forks faster than it dies never ends it."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def outlive_parent() -> None:
    """Take back :func:`die_with_parent`."""
    _prctl(PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of whatever a descendant leaves behind, in its session or outside it."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def sweep(spared: Collection[int] = ()) -> int:
    """Kill all children, and what they leave behind in turn; returns how many there were.

    After :func:`adopt_orphans` an orphan of any descendant is among them.
    """
    left = 0
    while (orphans := [one for one in children() if one not in spared]) and left < MOST_SWEPT:
        for orphan in orphans:
            left += 1
            try:
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
    return left


def children() -> list[int]:
    """The processes whose parent this one is."""
    me = os.getpid()
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == me:
            found.append(int(process.name))
    return found


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
