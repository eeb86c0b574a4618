"""The commands of :mod:`.h200_calls`: each within its time, and none longer than its driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]

STOPPING_S = 10.0
"""An interrupted command ends its processes within this; seen on an H200: 3 s, with the packing.
What is killed leaves its samples on disk."""

LOOK_S = 0.2
"""How long a command runs on before it is seen that the call is to end."""


@dataclass
class Halt:
    """Why a call is to end before its time; empty until then.

    A signal only sets the word, so that what is noted and packed is never cut off half way; the
    threads that wait for commands see it. It is no event, whose lock a handler could wait for.
    """

    why: str = ""

    @contextlib.contextmanager
    def by_signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end the call, also where a shell had its job ignore Ctrl-C."""

        def stop(number: int, _: object) -> None:
            self.why = f"the call was ended by {signal.Signals(number).name}"

        before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def within(
    words: Sequence[str], variables: Mapping[str, str], log: Any, limit_s: float, halt: Halt
) -> int | None:
    """Run a command and give its exit code.

    At the limit, or when the call is to end, it is interrupted, so that it can go on later, and the
    answer is None; also where it was not begun because the call ends.
    """
    if halt.why:
        return None
    process = subprocess.Popen(
        words, cwd=ROOT, env=variables, stdout=log, stderr=log, process_group=0
    )
    deadline = time.monotonic() + max(1.0, limit_s)
    try:
        while time.monotonic() < deadline and not halt.why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=LOOK_S)
    finally:
        if process.returncode is None:
            _end(process)
    return None


def _end(process: subprocess.Popen[Any]) -> None:
    """Interrupt a command; kill what is left of it after its grace, in other sessions too."""
    below = _below(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=STOPPING_S)
    except subprocess.TimeoutExpired:
        below += _below(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _below(pid: int) -> list[psutil.Process]:
    """The processes that it started, and those that they did."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []
