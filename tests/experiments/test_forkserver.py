"""The fork server's own life: it must not outlive the parent that asked for it."""

from __future__ import annotations

import os
import subprocess
import sys


def test_a_server_whose_parent_died_before_it_could_watch_it_loads_nothing() -> None:
    """The kernel tells of deaths after the question only; the pipe tells of earlier ones."""
    reading, writing = os.pipe()
    os.close(writing)
    server = subprocess.run(
        [sys.executable, "-m", "experiments.forkserver", "json"],
        stdin=reading,
        capture_output=True,
        check=False,
        timeout=60,
    )
    os.close(reading)
    assert server.returncode == 1
    assert server.stdout == b""
