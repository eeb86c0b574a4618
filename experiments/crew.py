"""Several untimed processes at once: what the parity checks will ask for is started beforehand.

The checks stay a sequence: they ask for one process after the other, and what was started ahead is
then done or under way. Nothing here is timed, so that processes beside each other do no harm, with
one exception: memory. Each process has a size, and only what fits beside the others is started. A
process that fails beside others is run again alone, so that no failure is another one's fault.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol

from experiments.executor import Execution
from experiments.server_process import ServerDied
from experiments.tasks import Task, TaskResult

INTERRUPT_AGAIN_S = 1.0
"""A thread may just have been about to start its process."""


class Hand(Protocol):
    """What runs one task at a time (:class:`experiments.executor.Executor`)."""

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        """Run one task in a fresh process."""

    def interrupt(self) -> None:
        """End what runs, from another thread."""


@dataclass(eq=False, slots=True)
class _Job:
    """A task on its way: ``crowded`` once another ran beside it, ``alone`` if none may."""

    task: Task
    size: float
    state: Literal["waiting", "running", "done"] = "waiting"
    awaited: bool = False
    crowded: bool = False
    alone: bool = False
    result: TaskResult | None = None
    error: BaseException | None = None


class Crew:
    """Runs tasks on several hands; called with a task, it gives that task's result.

    Args:
        hands: what the tasks run with, entered and left here; each runs one task at a time.
        size_of: the memory that a task may take, in the unit of ``room``.
        room: the memory there is; a task larger than that runs by itself.
    """

    def __init__(
        self,
        hands: Sequence[AbstractContextManager[Hand]],
        size_of: Callable[[Task], float],
        room: float = math.inf,
    ) -> None:
        self._size_of, self._room = size_of, room
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._stack = contextlib.ExitStack()
        self._waiting_hands = tuple(hands)
        self._free: list[Hand] = []
        self._busy: list[Hand] = []
        self._pool = ThreadPoolExecutor(max(1, len(hands)), thread_name_prefix="crew")

    def __enter__(self) -> Crew:
        with contextlib.ExitStack() as unless_all_start:
            self._free = [unless_all_start.enter_context(hand) for hand in self._waiting_hands]
            self._stack = unless_all_start.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End what still runs: nobody asked for it."""
        with self._changed:
            self._closed = True
            while self._busy:
                for hand in self._busy:
                    hand.interrupt()
                self._changed.wait(INTERRUPT_AGAIN_S)
        self._pool.shutdown()
        self._stack.close()

    @property
    def size(self) -> int:
        """Tasks that are at work at once, at most."""
        return len(self._waiting_hands)

    def ahead(self, tasks: Iterable[Task]) -> None:
        """Start these as soon as there is room; each answers one later call."""
        with self._changed:
            self._jobs += [_Job(task, self._size_of(task)) for task in tasks]
            self._start()

    def __call__(self, task: Task) -> TaskResult:
        """The result of the task, which is started now where it was not started ahead.

        Raises:
            ServerDied: what starts the processes ended.
            OSError: a task cannot be written, or its result read.
        """
        with self._changed:
            job = self._known(task)
            job.awaited = True
            self._start()
            while job.state != "done":
                self._changed.wait()
            self._jobs.remove(job)
        if job.error is not None:
            raise job.error
        assert job.result is not None, "a job that is done has a result or an error"
        return job.result

    def _known(self, task: Task) -> _Job:
        key = task.content_digest()
        for job in self._jobs:
            if not job.awaited and job.task.content_digest() == key:
                return job
        job = _Job(task, self._size_of(task))
        self._jobs.append(job)
        return job

    def _start(self) -> None:
        """Hand out what may start now; called with the lock held."""
        while self._free and not self._closed and (job := self._next()) is not None:
            hand = self._free.pop()
            self._busy.append(hand)
            job.state = "running"
            running = self._running()
            for one in running:
                one.crowded |= len(running) > 1
            future = self._pool.submit(hand.run, job.task)
            future.add_done_callback(functools.partial(self._ended, job, hand))

    def _ended(self, job: _Job, hand: Hand, future: Future[Execution]) -> None:
        """Keep how a job ended; one that failed beside others waits to be run again alone."""
        error = future.exception()
        result = None if error is not None else future.result().result
        failed = isinstance(error, ServerDied) or (result is not None and bool(result.failure))
        with self._changed:
            self._busy.remove(hand)
            self._free.append(hand)
            if failed and job.crowded and not job.alone and not self._closed:
                job.alone, job.state = True, "waiting"
            else:
                job.result, job.error, job.state = result, error, "done"
            self._start()
            self._changed.notify_all()

    def _next(self) -> _Job | None:
        """The first that may start now; what is asked for already comes first."""
        running = self._running()
        waiting = [job for job in self._jobs if job.state == "waiting"]
        alone = [job for job in waiting if job.alone]
        if alone or any(job.alone for job in running):
            return alone[0] if alone and not running else None
        room = self._room - sum(job.size for job in running)
        fitting = [job for job in waiting if job.size <= room or not running]
        return min(fitting, key=lambda job: not job.awaited, default=None)

    def _running(self) -> list[_Job]:
        return [job for job in self._jobs if job.state == "running"]
