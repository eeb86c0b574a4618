"""Two executors side by side: both processes of a pair live at once and take turns.

Each has a server of its own; what is no pair (witness, parity) runs in the first alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from experiments import baton
from experiments.executor import Execution, Executor
from experiments.frozen import FrozenEnvironment
from experiments.spec import AbSpec
from experiments.tasks import Task
from experiments.telemetry import Sampler
from experiments.values import Scalar


class Lanes:
    """Runs tasks one by one, or the two of a pair in turns.

    Args:
        frozen: what all measured processes of the run share.
        work: folder for task and result files.
        time_limit_s: seconds of work after which a process counts as hung.
        sampler: sees the device; a pair's telemetry is the same for both of its runs.
    """

    def __init__(
        self, frozen: FrozenEnvironment, work: Path, *, time_limit_s: float, sampler: Sampler
    ) -> None:
        self.frozen = frozen
        self._sampler = sampler
        self.time_limit_s = time_limit_s
        self._lanes = tuple(Executor(frozen, work, time_limit_s=time_limit_s) for _ in range(2))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Lanes:
        for lane in self._lanes:
            self._stack.enter_context(lane)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def server_s(self) -> float:
        """Seconds spent waiting for servers so far."""
        return max(lane.server_s for lane in self._lanes)

    @property
    def not_forkable(self) -> str:
        """Why processes are fresh interpreters; empty where they are forked."""
        return self._lanes[0].not_forkable

    def processes(self) -> tuple[int, ...]:
        """The roots of the process trees that are ours."""
        return tuple({pid for lane in self._lanes for pid in lane.processes()})

    def new_block(self) -> None:
        """Replace both servers."""
        for lane in self._lanes:
            lane.new_block()

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        """Run one task in a fresh process of the first lane."""
        self._sampler.begin(self.processes)
        seen: Mapping[str, Scalar] = {}
        try:
            execution = self._lanes[0].run(task, timeout_s)
        finally:
            seen = self._sampler.end()
        return replace(execution, telemetry=seen)

    def run_pair(self, first: Task, second: Task) -> tuple[Execution, Execution]:
        """Run two tasks in turns, the first one beginning.

        Where either fails, neither counts: alone, each shows whose failure it is.
        """
        beginning, following = baton.arguments(self.frozen.other_cores)
        tasks = (_with(first, beginning), _with(second, following))
        limit_s = 2 * self.time_limit_s
        self._sampler.begin(self.processes)
        seen: Mapping[str, Scalar] = {}
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="lane") as beside:
                other = beside.submit(self._lanes[1].run, tasks[1], limit_s)
                one = self._lanes[0].run(tasks[0], limit_s)
                two = other.result()
        finally:
            seen = self._sampler.end()
        if one.result.failure or two.result.failure:
            return self.run(first), self.run(second)
        return _own(one, seen), _own(two, seen)


def executor_for(
    spec: AbSpec, frozen: FrozenEnvironment, work: Path, *, time_limit_s: float, sampler: Sampler
) -> Executor | Lanes:
    """What runs the processes of a comparison: one by one, or the two of a pair in turns."""
    if spec.interleaved:
        return Lanes(frozen, work, time_limit_s=time_limit_s, sampler=sampler)
    return Executor(frozen, work, time_limit_s=time_limit_s, watcher=sampler)


def _with(task: Task, more: Mapping[str, object]) -> Task:
    return task.model_copy(update={"arguments": {**task.arguments, **more}})


def _own(execution: Execution, seen: Mapping[str, Scalar]) -> Execution:
    """The wall-clock of this run alone: the time without the baton is the other's."""
    waited = execution.result.facts.get("waited_s")
    waited_s = float(waited) if isinstance(waited, (int, float)) else 0.0
    return replace(execution, wall_s=max(0.0, execution.wall_s - waited_s), telemetry=seen)
