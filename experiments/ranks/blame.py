"""Which rank of a group failed, and how it is said (pure).

When one rank ends, the others fail or hang in their next exchange with it: their errors are echoes
and are not what is reported.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.ranks.report import RankReport
from experiments.records import FailureKind
from experiments.tasks import TaskResult

ECHOES = re.compile(
    r"Dist(Backend|Network|Store|Queue)?Error|Connection (closed|reset)|Broken pipe"
    r"|gloo/transport|ncclRemoteError|NCCL error|monitoredBarrier|Socket closed",
    re.IGNORECASE,
)
"""How gloo, NCCL and torch name a peer that is gone."""

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
"""A line of ``faulthandler``'s dump, innermost first."""

WAITING = re.compile(r"torch/distributed/|experiments/ranks/|_engine_run_backward")
"""Innermost Python frames of a rank that waits for its peers."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank's process ended, as its supervisor saw it.

    Attributes:
        code: exit code, or the negative signal; None where the group was ended around it.
        seen: monotonic seconds when its end was seen.
        stage: the last stage that it entered.
        log: the end of its log, with its stack where it was asked for.
        report: what it left, if it did.
        memory: the kernel killed a process for lack of memory meanwhile.
    """

    rank: int
    code: int | None
    seen: float
    stage: str = ""
    log: str = ""
    report: RankReport | None = None
    memory: bool = False

    @property
    def worked(self) -> bool:
        """Whether it did its whole task."""
        return self.code == 0 and self.report is not None and self.report.result.failure is None

    @property
    def failed(self) -> bool:
        """Whether it ended by itself without having done its work."""
        return self.code is not None and not self.worked

    @property
    def when(self) -> float:
        """When it failed."""
        return self.report.ended if self.report is not None else self.seen

    @property
    def is_echo(self) -> bool:
        """Whether its failure only says that another rank was gone."""
        result = self.report.result if self.report is not None else None
        return result is not None and bool(ECHOES.search(f"{result.message}\n{result.traceback}"))


def failure(ends: Sequence[RankEnd]) -> TaskResult:
    """The failure of a group, by the rank that failed first and not because of another."""
    failed = [end for end in ends if end.failed]
    first = min(failed, key=lambda end: (end.is_echo, end.when))
    kind, message = _what(first)
    result = first.report.result if first.report is not None else TaskResult()
    others = "; ".join(_other(end) for end in ends if end is not first)
    return TaskResult(
        failure=kind,
        stage=result.stage or first.stage or "start",
        message=f"rank {first.rank} of {len(ends)}: {message}",
        traceback=f"rank {first.rank}:\n{result.traceback or first.log}\nthe others: {others}",
        facts={"failed_rank": first.rank},
    )


def _what(end: RankEnd) -> tuple[FailureKind, str]:
    result = end.report.result if end.report is not None else None
    if result is not None and result.failure is not None:
        return result.failure, result.message
    code = end.code or 0
    if code == -signal.SIGKILL and end.memory:
        return "out-of-memory", "killed by the kernel for lack of host memory"
    if code < 0:
        return "crashed", f"killed by {signal.Signals(-code).name}"
    return "crashed", f"ended with exit code {code} and no report"


def _other(end: RankEnd) -> str:
    if end.worked:
        return f"rank {end.rank} ended its work"
    if end.code is None:
        return f"rank {end.rank} was ended with the group at {end.stage or 'start'}"
    return f"rank {end.rank}: {_what(end)[1].splitlines()[0]}"


def hung(ends: Sequence[RankEnd], limit_s: float) -> TaskResult:
    """The failure of a group that did not end in time, by the rank that did not wait for others."""
    alive = [end for end in ends if end.code is None]
    places = {end.rank: innermost(end.log) for end in alive}
    guilty = [rank for rank, place in places.items() if place and not WAITING.search(place)]
    named = guilty if 0 < len(guilty) < len(ends) else []
    who = f"rank {', '.join(map(str, named))} of {len(ends)}" if named else "the ranks"
    first = next((end for end in alive if not named or end.rank in named), alive[0])
    stacks = "\n".join(f"rank {end.rank}, at {end.stage or 'start'}:\n{end.log}" for end in alive)
    where = f" in {places[first.rank]}" if named else ""
    return TaskResult(
        failure="hung",
        stage=first.stage or "start",
        message=f"{who} did not end within {limit_s:.0f} s{where}; the group was ended",
        traceback=stacks,
        facts={"failed_rank": first.rank} if named else {},
    )


def innermost(log: str) -> str:
    """Where a process stood when its stack was dumped: ``file:line in function``; empty if not."""
    dump = log.rpartition("Current thread")[2] if "Current thread" in log else ""
    found = FRAME.search(dump)
    return f"{found['file']}:{found['line']} in {found['function']}" if found else ""


def worked(ends: Mapping[int, RankEnd]) -> tuple[RankReport, ...]:
    """The reports of a group whose ranks all did their work, by rank."""
    return tuple(
        end.report for _, end in sorted(ends.items()) if end.worked and end.report is not None
    )
