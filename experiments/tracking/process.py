"""The process that writes to MLflow: started with a request, ended by a hard time limit.

What it said before its end counts, however it ended; a fault is one of the lines, never raised.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from experiments.tracking.store import (
    ROOT,
    Request,
    artifact_root,
    child_environment,
    default_uri,
    unreachable,
)

RETRY_S = 8.0
"""How long one call to a locked or absent store is tried again, at most."""

GRACE_S = 5.0
"""The writer's own alarm ends it this much before it is killed."""


def talk(
    work: Path,
    home: Path,
    store: str,
    timeout_s: float,
    *,
    folders: Sequence[Path] = (),
    known: tuple[tuple[str, str, str], ...] | None = None,
) -> list[dict[str, Any]]:
    """Start the writing process, wait at most ``timeout_s``, and read what it said."""
    if reason := unreachable(store):
        return [{"fault": reason}]
    request = Request(
        uri=store,
        own=store == default_uri(home),
        artifacts=artifact_root(home, store),
        locks=str(home.absolute() / "locks"),
        timeout_s=timeout_s,
        retry_s=min(timeout_s / 3, RETRY_S),
        results=str(work / "results.jsonl"),
        folders=tuple(map(str, folders)),
        known=known,
    )
    asked = work / "request.json"
    asked.write_text(request.model_dump_json(), encoding="utf-8")
    with (work / "output.txt").open("w+b") as output:
        code = _run(asked, output, timeout_s)
        output.seek(0)
        words = output.read().decode(errors="replace").strip().splitlines()
    results = work / "results.jsonl"
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    said = [json.loads(line) for line in lines]
    if code not in (0, None) and not any("fault" in one for one in said):
        last = words[-1] if words else f"the writing process ended with {code}"
        said.append({"fault": _ended(code, last, timeout_s)})
    return said


def _ended(code: int, last: str, timeout_s: float) -> str:
    return f"no answer within {timeout_s:.0f} s" if code == -signal.SIGALRM else last


def _run(asked: Path, output: IO[bytes], timeout_s: float) -> int | None:
    """The exit code; None where the time ran out. Its whole process group is ended either way."""
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.tracking.child", str(asked)],
        cwd=ROOT,
        env=child_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout_s + GRACE_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
