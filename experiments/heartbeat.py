"""A line now and then while a process works of which nothing else is heard.

A check of the battery may compile or sum in fp64 for minutes before it has a result to show.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from experiments import formats
from experiments.executor import Execution
from experiments.requests import Listener
from experiments.tasks import Task, TaskResult
from levers.base import Lever, compile_seconds

EVERY_S = 20.0
"""Seconds between two lines: few enough to read, often enough not to look hung."""

COLD_PASSES = 3
"""Processes that find no compiled code in the candidate's caches: the witness has the workload's
shapes, the op check its cases', the loss check its reduced depth. Later ones load what these kept.
"""

ARMS = {"ref": "the reference", "cand": "the candidate"}


class Runs(Protocol):
    """What runs a task in a fresh process."""

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        """Run one task."""


@contextlib.contextmanager
def heard(listener: Listener, what: str, every_s: float = EVERY_S) -> Iterator[None]:
    """Tell the listener how long the work inside takes, from the first ``every_s`` seconds on."""
    began, ended = time.monotonic(), threading.Event()

    def speak() -> None:
        while not ended.wait(every_s):
            listener.on_progress(f"{what}: {formats.duration(time.monotonic() - began)} so far")

    speaker = threading.Thread(target=speak, name="heartbeat", daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()


def running(executor: Runs, listener: Listener) -> Callable[[Task], TaskResult]:
    """Runs tasks and is heard meanwhile: which process of which arm works, and for how long."""
    return waiting(lambda task: executor.run(task).result, listener)


def waiting(
    execute: Callable[[Task], TaskResult], listener: Listener
) -> Callable[[Task], TaskResult]:
    """The same for what gives a task's result, however it runs it."""

    def run(task: Task) -> TaskResult:
        with heard(listener, f"{task.kind} of {ARMS.get(task.arm, task.arm)}"):
            return execute(task)

    return run


def compilation_s(lever: Lever) -> float:
    """Seconds that a run of the lever may spend on compiling before its first sample."""
    return COLD_PASSES * compile_seconds(lever)


def say_compilation(listener: Listener, lever: Lever) -> None:
    """Say beforehand that nothing will be seen for a while, where the lever compiles."""
    seconds = compile_seconds(lever)
    if seconds:
        listener.on_progress(
            f"{lever.name} compiles first: about {formats.duration(seconds)} in each of "
            f"{COLD_PASSES} processes, longer on a few cores"
        )
