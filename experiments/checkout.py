"""The commit that the code of a run was at, where it runs from a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

from experiments.home import CHECKOUT


def commit(checkout: Path = CHECKOUT) -> tuple[str, bool]:
    """The checkout's commit, and whether its tracked files differ from it; empty elsewhere."""
    if not (checkout / ".git").exists():
        return "", False
    head = _git(checkout, "rev-parse", "HEAD")
    return head, bool(head) and bool(_git(checkout, "status", "--porcelain", "-uno"))


def _git(checkout: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
