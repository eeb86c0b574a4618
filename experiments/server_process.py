"""The parent's handle on one server: its pipes, its log, its first line."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from experiments.frozen import FrozenEnvironment
from experiments.server_protocol import Ending, Ready, Request
from levers.errors import LevergateError

ANSWER_GRACE_S = 15.0
"""Seconds beyond a task's limit after which the server itself counts as gone."""

START_LIMIT_S = 300.0
"""Seconds within which a server must have loaded its modules (a cold disk takes minutes)."""

LOG_TAIL_BYTES = 8_000


class ServerDied(LevergateError):
    """The server ended or did not answer; the message holds its last words."""


def read_tail(path: Path) -> str:
    """The end of a log or a small file; empty where it is not there."""
    try:
        return path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""


class ServerProcess:
    """One server, started on construction; it loads its modules while the caller goes on."""

    def __init__(self, frozen: FrozenEnvironment, preload: tuple[str, ...], log: Path) -> None:
        self._log = log
        self._ready: Ready | None = None
        self._buffer = b""
        self._hung_up = False
        cores = frozen.other_cores
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "experiments.forkserver", *preload],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(frozen.variables),
                start_new_session=True,
                bufsize=0,
            )
        self._cores = cores
        if cores and frozen.measured_core is not None:
            os.sched_setaffinity(self._process.pid, (frozen.measured_core, *cores))

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it was ready and has ended since, or was told to."""
        ended = self._hung_up or self._process.poll() is not None
        return self._ready is not None and ended

    def wait_ready(self) -> Ready:
        """Wait until the modules are loaded, on all cores: nothing is measured meanwhile.

        Raises:
            ServerDied: it ended, or took longer than :data:`START_LIMIT_S`.
        """
        if self._ready is None:
            self._ready = Ready(**self._line(START_LIMIT_S))
            if self._cores:
                os.sched_setaffinity(self._process.pid, self._cores)
        return self._ready

    def ask(self, request: Request, limit_s: float) -> Ending:
        """Have one process run, and wait for its end."""
        try:
            _pipe(self._process.stdin).write(json.dumps(asdict(request)).encode() + b"\n")
        except (BrokenPipeError, ValueError) as error:  # its end was closed, or ours (hang_up)
            raise self._died("closed its pipe") from error
        return Ending(**self._line(limit_s + ANSWER_GRACE_S))

    def hang_up(self) -> None:
        """Have it end, and kill what runs below it; whoever waits for an answer is told."""
        self._hung_up = True
        _pipe(self._process.stdin).close()

    def stop(self) -> None:
        """End it; it kills what still runs below it."""
        for pipe in (self._process.stdin, self._process.stdout):
            _pipe(pipe).close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _line(self, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        handle = _pipe(self._process.stdout).fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                raise self._died(f"did not answer within {limit_s:.0f} s")
            data = os.read(handle, 65536)
            if not data:
                raise self._died("ended")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, how: str) -> ServerDied:
        return ServerDied(
            f"the process that starts measured processes {how}: {read_tail(self._log).strip()}",
            cure="see that torch and the workload's modules import in this environment",
        )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ServerDied("the server has no pipe")
    return pipe
