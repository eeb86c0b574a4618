"""The parent's side of a measured process: hand a task to the server, get back how it ended.

The parent imports no torch. An executor is used from one thread (``interrupt`` apart); leaving its
block ends the server, and the death of the parent, however sudden, ends every process that it
started.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psutil
from pydantic import ValidationError

from experiments.frozen import FrozenEnvironment
from experiments.home import make_folder
from experiments.records import FailureKind
from experiments.server_process import ServerProcess, read_tail
from experiments.server_protocol import Ending, Request
from experiments.tasks import LIMIT_S, Task, TaskResult
from experiments.values import Scalar

PRELOADED = ("torch", "numpy", "experiments.worker")
"""What the server loads beside the workload's opener; levers are never among it."""

PRELOADED_RANKS = ("experiments.ranks.parallel",)
"""What several ranks need beside."""

FIRST_USED = ("torch._dynamo", "triton")
"""What PyTorch loads by itself at the first call of a custom operator (packed attention is one) or
of DDP: 3.6 seconds in every process on an H200's host. Left to the processes where loading it
leaves the server unfit for a fork."""


class Watcher(Protocol):
    """Sees the device while a process runs; see :mod:`experiments.telemetry`."""

    def begin(self, own: Callable[[], tuple[int, ...]]) -> None:
        """A measured process starts; ``own`` gives the roots of our process trees."""

    def end(self) -> Mapping[str, Scalar]:
        """It ended: what was seen meanwhile."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One process that ran: its result, and how the parent saw it.

    ``wall_s`` runs from the request to the answer; waiting for a server is not in it.
    """

    result: TaskResult
    wall_s: float
    started_at: str
    telemetry: Mapping[str, Scalar] = field(default_factory=dict)


class _Nobody:
    def begin(self, own: Callable[[], tuple[int, ...]]) -> None:
        """See nothing."""

    def end(self) -> Mapping[str, Scalar]:
        """Saw nothing."""
        return {}


class Executor:
    """Runs tasks in fresh processes from one frozen environment.

    Args:
        frozen: what all measured processes of the run share.
        work: folder for task and result files; one below it is made and removed.
        time_limit_s: seconds after which a process counts as hung, unless ``run`` says otherwise.
        watcher: sees the device while a process runs.

    Attributes:
        server_s: seconds spent waiting for servers so far.
        not_forkable: why processes are fresh interpreters; empty where they are forked.
    """

    def __init__(
        self,
        frozen: FrozenEnvironment,
        work: Path,
        *,
        time_limit_s: float = 600.0,
        watcher: Watcher | None = None,
    ) -> None:
        self.frozen = frozen
        self.time_limit_s = time_limit_s
        self.server_s = 0.0
        self.not_forkable = frozen.fresh_interpreter
        self._watcher: Watcher = watcher or _Nobody()
        self._work = work
        self._folder = work
        self._server: ServerProcess | None = None
        self._count = 0
        self._first_used = FIRST_USED if frozen.device.is_cuda or frozen.ranks > 1 else ()
        self._cores: set[int] | None = None

    def __enter__(self) -> Executor:
        _remove_left(make_folder(self._work))
        self._folder = Path(tempfile.mkdtemp(prefix=f"tasks-{os.getpid()}-", dir=self._work))
        if self.frozen.other_cores:
            self._cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self.frozen.other_cores)
        self.new_block()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        if self._cores is not None:
            os.sched_setaffinity(0, self._cores)
        shutil.rmtree(self._folder, ignore_errors=True)

    def new_block(self) -> None:
        """Replace the server; it loads its modules while the caller goes on."""
        self._fresh_server()

    def _fresh_server(self) -> ServerProcess:
        self._stop()
        log = self._folder / "server.log"
        self._server = ServerProcess(self.frozen, self._preload(), log)
        return self._server

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        """Run one task in a fresh process; how it fails is part of the result.

        A server that ended between two tasks is replaced; a task is never silently run again.

        Raises:
            ServerDied: the server could not load its modules, or ended while the task ran.
            CodeChanged: code was edited since the sitting began.
        """
        return self._run(task, self.time_limit_s if timeout_s is None else timeout_s)

    def run_pair(self, first: Task, second: Task) -> tuple[Execution, Execution]:
        """Run two tasks back to back; :class:`experiments.lanes.Lanes` runs them in turns."""
        return self.run(first), self.run(second)

    def processes(self) -> tuple[int, ...]:
        """The roots of the process trees that are ours: this process and the server."""
        server = () if self._server is None else (self._server.pid,)
        return (os.getpid(), *server)

    def interrupt(self) -> None:
        """End what runs, from another thread: the one that waits for it gets ServerDied."""
        server = self._server
        if server is not None:
            server.hang_up()

    def _preload(self) -> tuple[str, ...]:
        if self.frozen.fresh_interpreter:
            return ()
        more = PRELOADED_RANKS if self.frozen.ranks > 1 else ()
        return (*PRELOADED, *more, self.frozen.opener.split(":")[0], *self._first_used)

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _ready(self) -> ServerProcess:
        server = self._server
        if server is None or server.has_ended:
            server = self._fresh_server()
        start = time.monotonic()
        ready = server.wait_ready()
        if ready.not_forkable and self._first_used and not self.frozen.fresh_interpreter:
            self._first_used = ()
            server = self._fresh_server()
            ready = server.wait_ready()
        self.server_s += time.monotonic() - start
        if not self.frozen.fresh_interpreter:
            self.not_forkable = ready.not_forkable
        return server

    def _run(self, task: Task, limit_s: float) -> Execution:
        self._look_at_code()
        server = self._ready()
        self._count += 1
        stem = self._folder / f"{self._count:06d}"
        stem.with_suffix(".task").write_text(_with_limit(task, limit_s).model_dump_json())
        started_at = datetime.now(UTC).isoformat()
        self._watcher.begin(self.processes)
        start = time.monotonic()
        try:
            ending = server.ask(self._request(task, stem, limit_s, start), limit_s)
        finally:
            wall_s = time.monotonic() - start
            telemetry = self._watcher.end()
        self._look_at_code()
        result = result_of(stem, ending, limit_s)
        for path in self._folder.glob(f"{stem.name}.*"):
            path.unlink()
        return Execution(result, wall_s, started_at, telemetry)

    def _look_at_code(self) -> None:
        """Give up what a process gave that may have loaded other code than those before it.

        Raises:
            CodeChanged: code was edited since the sitting began.
        """
        if self.frozen.watch is not None:
            self.frozen.watch.look()

    def _request(self, task: Task, stem: Path, limit_s: float, born: float) -> Request:
        core = self.frozen.measured_core
        return Request(
            task=str(stem.with_suffix(".task")),
            result=str(stem.with_suffix(".result")),
            stage=str(stem.with_suffix(".stage")),
            log=str(stem.with_suffix(".log")),
            environment=self.frozen.additions(task),
            fresh=bool(self.not_forkable),
            cores=() if core is None else (core,),
            limit_s=limit_s,
            memory_limit_bytes=self.frozen.memory_limit_bytes,
            born=born,
        )


def _with_limit(task: Task, limit_s: float) -> Task:
    """Tell several ranks their limit: their supervisor then says which one hung."""
    if task.ranks == 1:
        return task
    return task.model_copy(update={"arguments": {**task.arguments, LIMIT_S: limit_s}})


def _remove_left(work: Path) -> None:
    """Remove the task folders of processes that were killed."""
    for folder in work.glob("tasks-*-*"):
        if not psutil.pid_exists(int(folder.name.split("-")[1])):
            shutil.rmtree(folder, ignore_errors=True)


def result_of(stem: Path, ending: Ending, limit_s: float) -> TaskResult:
    """What a process left, or what its silence means."""
    path = stem.with_suffix(".result")
    host = {"host_peak_bytes": ending.peak_host_bytes, "host_cpu_s": ending.cpu_s}
    if path.is_file() and not ending.hung:
        try:
            result = TaskResult.model_validate_json(path.read_bytes())
        except ValidationError as error:
            return TaskResult(failure="crashed", stage="result", message=str(error))
        left = (f"{ending.left} processes left running",) if ending.left else ()
        return result.model_copy(
            update={
                "facts": {**result.facts, **host},
                "left_changed": (*result.left_changed, *left),
            }
        )
    kind, message = _silent(ending, limit_s)
    return TaskResult(
        failure=kind,
        stage=read_tail(stem.with_suffix(".stage")) or "start",
        message=message,
        traceback=read_tail(stem.with_suffix(".log")),
        facts=host,
    )


def _silent(ending: Ending, limit_s: float) -> tuple[FailureKind, str]:
    """Kind and message of a process that left no result."""
    if ending.hung:
        return "hung", f"did not end within {limit_s:.0f} s; its process group was killed"
    if ending.code < 0:
        name = signal.Signals(-ending.code).name
        if ending.code == -signal.SIGKILL and ending.oom_kills:
            return "out-of-memory", "killed by the kernel for lack of host memory"
        return "crashed", f"killed by {name}"
    return "crashed", f"ended with exit code {ending.code} and no result"
