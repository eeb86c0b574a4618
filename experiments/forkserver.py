"""The process that starts measured processes: by a fork of itself, with torch loaded, or by exec.

A fresh interpreter spends seconds on imports that a fork of a warm one does not. The server loads
torch and the workload, runs no tensor operation and creates no CUDA context, and so has one thread
when it forks; where that does not hold it says so and is not used for forks. Children of one server
share its memory layout, which understates the noise between processes, so it is replaced at each
block.

It speaks JSON lines: requests on its standard input, one answer each on its standard output. Each
child is a session of its own; it dies with the server, and the server with the pipe to its parent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from experiments import descendants
from experiments.server_protocol import Ending, Ready, Request

LAST_WORDS_S = 0.3
"""Seconds that a process over its time limit gets to print its stack before it is killed."""

KEEP_OPEN = 2
"""File descriptors above the standard ones are closed in a child."""


def hung_up(pipe: int) -> bool:
    """Whether nobody holds the other end: a parent that died before it could be watched."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def why_not_forkable() -> str:
    """Why a fork of this process would not be honest or safe; empty where it would."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"{threads - 1} threads were started by an import"
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "an import created a CUDA context"
    for handle in Path("/proc/self/fd").iterdir():
        if os.path.realpath(handle).startswith("/dev/nvidia"):
            return "an import opened the CUDA driver"
    return ""


class Server:
    """The loop: read a request, start its process, watch it, answer."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._buffer = b""
        self._ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self, preload: Sequence[str]) -> None:
        """Load the modules, say so, and answer until the parent closes the pipe.

        While modules load, the pipe would tell of the parent's death seconds late: until then the
        kernel ends the server. Afterwards it ends what it started before it ends itself.

        The imports make no garbage worth a look: without the collector they take a tenth less.
        """
        start = time.monotonic()
        gc.disable()
        for name in preload:
            importlib.import_module(name)
        descendants.outlive_parent()
        gc.collect()
        gc.freeze()
        gc.enable()
        reason = why_not_forkable() if preload else "nothing was loaded"
        self._answer(asdict(Ready(reason, time.monotonic() - start, os.getpid())))
        while (line := self._next_line()) is not None:
            request = Request(**json.loads(line))
            self._answer(asdict(self._run(request)))

    def _answer(self, value: dict[str, Any]) -> None:
        os.write(self._answers, json.dumps(value).encode() + b"\n")

    def _next_line(self) -> bytes | None:
        while b"\n" not in self._buffer:
            data = os.read(self._requests, 65536)
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _run(self, request: Request) -> Ending:
        killed_before = oom_kills()
        pid = os.fork()
        if pid == 0:
            become(request)
        hung = self._watch(pid, request.limit_s)
        _, status, usage = os.wait4(pid, 0)
        return Ending(
            pid=pid,
            code=os.waitstatus_to_exitcode(status),
            hung=hung,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_host_bytes=usage.ru_maxrss * 1024,
            oom_kills=oom_kills() - killed_before,
            left=descendants.sweep(),
        )

    def _watch(self, pid: int, limit_s: float) -> bool:
        """Wait for the end, the time limit or the parent's; returns whether the limit was hit."""
        deadline = time.monotonic() + limit_s
        while not _has_ended(pid):
            left = deadline - time.monotonic()
            if left <= 0:
                _last_words(pid)
                _kill_group(pid)
                return True
            ready, _, _ = select.select([self._ended, self._requests], [], [], left)
            if self._ended in ready:
                os.read(self._ended, 4096)
            if self._requests in ready and self._parent_is_gone():
                _kill_group(pid)
                descendants.sweep()
                os._exit(1)
        return False

    def _parent_is_gone(self) -> bool:
        data = os.read(self._requests, 65536)
        self._buffer += data
        return not data


def _has_ended(pid: int) -> bool:
    """Whether a child has ended; it still waits to be reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _last_words(pid: int) -> None:
    """Let a hanging process print its Python stack to its log."""
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return
    time.sleep(LAST_WORDS_S)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)


def oom_kills() -> int:
    """Processes that the kernel has killed for memory since boot; 0 where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def become(request: Request) -> NoReturn:
    """Turn this forked child into the measured process; never returns."""
    try:
        _set_up(request)
        if request.fresh:
            _exec(request)
        from experiments.worker import run_files

        run_files(Path(request.task), Path(request.result), Path(request.stage), request.born)
        code = 0
    except BaseException:  # noqa: BLE001 - the process boundary: the log is its last words
        import traceback

        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def _set_up(request: Request) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    descendants.die_with_parent()
    log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(KEEP_OPEN + 1, 1024)
    os.environ.update(request.environment)
    if request.cores:
        os.sched_setaffinity(0, request.cores)
    if request.memory_limit_bytes is not None:
        limit = request.memory_limit_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def _exec(request: Request) -> NoReturn:
    files = (request.task, request.result, request.stage, str(request.born))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "experiments.worker", *files])


def main(arguments: Sequence[str]) -> None:
    """Serve on the standard streams; ``arguments`` name the modules to load before a fork."""
    descendants.die_with_parent()
    if hung_up(0):
        os._exit(1)
    descendants.adopt_orphans()
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    Server(requests, answers).serve(arguments)
    sys.stderr.flush()
    os._exit(0)  # taking torch down in order costs half a second, and the parent waits for it


if __name__ == "__main__":
    main(sys.argv[1:])
