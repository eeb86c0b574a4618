"""The supervisor of a group: starts its ranks, waits for all, ends all when one fails or hangs.

It runs in the process that the executor watches. Every rank is forked from it, stays in its process
group and dies with it, so that whoever ends that group ends all. No torch is imported here.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from experiments.descendants import die_with_parent
from experiments.forkserver import oom_kills
from experiments.ranks import blame
from experiments.ranks.blame import RankEnd
from experiments.ranks.merge import merged
from experiments.ranks.report import RankFiles, RankReport, rendezvous
from experiments.server_process import read_tail
from experiments.tasks import LIMIT_S, Task, TaskResult
from experiments.workloads import catalog as workloads

POLL_S = 0.02
"""Between two looks at the ranks; a look costs some microseconds."""

GRACE_S = 0.5
"""What the others get to end by themselves, and to say why, after one rank has failed."""

STACK_S = 0.2
"""What a rank gets to print its stack before it is killed."""

RESERVE_SHARE = 0.1
LONGEST_RESERVE_S = 3.0
"""How much earlier than the executor the supervisor ends a group, so that it can say who hung."""


def run_group(task: Task, stem: str, enter: Callable[[str], None], born: float) -> TaskResult:
    """Do the task on all of its ranks.

    Args:
        task: what each rank does on its shard.
        stem: path of the task's files without their suffix.
        enter: told of the stages of the group.
        born: ``time.monotonic()`` when the group was asked for.
    """
    enter("start of the ranks")
    group = Group(task, stem, born)
    try:
        group.start()
        enter("ranks at work")
        group.wait()
    finally:
        group.end()
    return group.result()


@dataclass(slots=True)
class Group:
    """The ranks of one task.

    Attributes:
        running: process ids by rank, of those that have not ended.
        ends: how those that ended did so, by rank.
        hung: whether the time limit was hit.
    """

    task: Task
    stem: str
    born: float
    running: dict[int, int] = field(default_factory=dict)
    ends: dict[int, RankEnd] = field(default_factory=dict)
    hung: bool = False
    _kills_before: int = field(default_factory=oom_kills)

    @property
    def limit_s(self) -> float:
        """Seconds that the executor gives the whole group; none where it does not say."""
        return float(self.task.arguments.get(LIMIT_S, float("inf")))

    def start(self) -> None:
        """Fork all ranks."""
        supervisor = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(self.task.ranks):
            pid = os.fork()
            if pid == 0:
                _become(self.task, rank, self.stem, self.born, supervisor)
            self.running[rank] = pid

    def wait(self) -> None:
        """Until all have ended, or one has failed and its grace is over, or the limit is hit."""
        limit_s = self.limit_s
        deadline = self.born + limit_s - min(LONGEST_RESERVE_S, RESERVE_SHARE * limit_s)
        while self.running:
            self._reap()
            if any(end.failed for end in self.ends.values()):
                deadline = min(deadline, self._first_failure() + GRACE_S)
            if self.running and time.monotonic() >= deadline:
                self.hung = not any(end.failed for end in self.ends.values())
                return
            if self.running:
                time.sleep(POLL_S)

    def _first_failure(self) -> float:
        return min(end.seen for end in self.ends.values() if end.failed)

    def _reap(self) -> None:
        for rank, pid in tuple(self.running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self.running[rank]
                self.ends[rank] = self._seen(rank, os.waitstatus_to_exitcode(status))

    def _seen(self, rank: int, code: int | None) -> RankEnd:
        files = RankFiles.of(self.stem, rank)
        return RankEnd(
            rank=rank,
            code=code,
            seen=time.monotonic(),
            stage=read_tail(files.stage),
            log=read_tail(files.log),
            report=_report(files.report) if code is not None else None,
            memory=oom_kills() > self._kills_before,
        )

    def end(self) -> None:
        """Kill what still runs; nothing of the group is left when this returns."""
        for pid in self.running.values():
            os.kill(pid, signal.SIGUSR1)
        if self.running:
            time.sleep(STACK_S)
        for rank, pid in self.running.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.ends[rank] = self._seen(rank, None)
        self.running.clear()

    def result(self) -> TaskResult:
        """One result, as if the group were one process."""
        ends = [end for _, end in sorted(self.ends.items())]
        if self.hung:
            return blame.hung(ends, self.limit_s)
        if not all(end.worked for end in ends):
            return blame.failure(ends)
        reports = blame.worked(self.ends)
        axes = workloads.get(self.task.workload).axes(self.task.parameters)
        return merged(reports, axes)


def _report(path: Path) -> RankReport | None:
    """What a rank left; None where it died before. It is written whole or not at all."""
    if not path.is_file():
        return None
    return RankReport.model_validate_json(path.read_bytes())


def _become(task: Task, rank: int, stem: str, born: float, supervisor: int) -> NoReturn:
    """Turn this forked child into a rank; never returns."""
    code = 1
    try:
        die_with_parent()
        if os.getppid() != supervisor:
            os._exit(1)
        files = RankFiles.of(stem, rank)
        log = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        faulthandler.enable(file=2)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        from experiments.ranks.rank_worker import run_rank

        code = run_rank(task, rank, files, rendezvous(stem), born)
    except BaseException:  # noqa: BLE001 - the process boundary: the log is its last words
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
