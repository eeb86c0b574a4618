"""The server of an oracle as a process: started by a command, waited for, ended with its group."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil

from experiments import home
from experiments.workloads.decode.oracle_graphs import Graphs, by_command, by_log, first_known
from experiments.workloads.decode.oracle_http import Address, ServerFailed, get

START_LIMIT_S = {"cpu": 60.0, "cuda": 420.0}
"""Seconds until a server must answer, by device: on CUDA it may compile and capture first. It stays
below the time after which the measured process itself counts as hung."""
POLL_S = 0.1
END_S = 15.0
"""Seconds between the request to end and the kill."""
TAIL_BYTES = 2000


def log_path(name: str = "oracle-server") -> Path:
    """A new file in the home's folder of logs; it stays after the run."""
    folder = home.find(os.environ, Path.cwd()).root / "logs"
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return home.make_folder(folder) / f"{name}-{stamp}-{os.getpid()}.log"


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class ServerCommand:
    """A server that a command started; ``{port}`` and ``{model}`` in it are filled in.

    Args:
        command: as typed.
        model: the model folder.
        log: where its output goes.
    """

    def __init__(self, command: str, model: str, log: Path) -> None:
        port = free_port()
        self.address = Address("127.0.0.1", port)
        self.log = log
        self.command = command.replace("{port}", str(port)).replace("{model}", shlex.quote(model))
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    shlex.split(self.command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise ServerFailed(
                f"the server's command cannot be started: {error}", cure=f"it was {self.command}"
            ) from error

    @property
    def has_ended(self) -> bool:
        """Whether its first process is gone."""
        return self._process.poll() is not None

    def tail(self) -> str:
        """The end of its log."""
        try:
            return self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    def graphs(self) -> Graphs:
        """What its command or its log says of captured graphs."""
        log = self.log.read_text(errors="replace")
        return first_known((by_command(self.command), by_log(log)))

    def stop(self) -> None:
        """End its whole process group; what does not end in time is killed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline and _group_lives(self._process):
            time.sleep(POLL_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the group is at work; those that only wait to be reaped are not."""
    process.poll()
    for one in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            mine = os.getpgid(one.pid) == process.pid
            if mine and one.info["status"] != psutil.STATUS_ZOMBIE:
                return True
    return False


def wait_healthy(address: Address, limit_s: float, has_ended: Callable[[], bool]) -> None:
    """Wait until the server answers ``/health``, or where it has none ``/v1/models``.

    Args:
        address: where it listens.
        limit_s: seconds to wait.
        has_ended: whether a server that was started for this has ended.

    Raises:
        ServerFailed: it ended, or did not answer in time.
    """
    deadline = time.monotonic() + limit_s
    last = "nobody listens"
    while time.monotonic() < deadline:
        if has_ended():
            raise ServerFailed("the server ended before it answered", cure="see its log")
        try:
            status = get(address, "/health")[0]
            if status in (404, 405):
                status = get(address, "/v1/models")[0]
            if status == 200:
                return
            last = f"status {status}"
        except OSError as error:
            last = str(error)
        time.sleep(POLL_S)
    raise ServerFailed(
        f"the server at {address.url} did not answer within {limit_s:.0f} s ({last})",
        cure="see its log; name a command that starts faster, or start it and give its address",
    )
