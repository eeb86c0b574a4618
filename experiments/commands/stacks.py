"""Beside runs: what their commands say of stacks, which have no verdict, and of campaigns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments import home
from experiments.requests import SyncReport
from experiments.stack import store as stack_store
from levers.errors import StoreError, UnknownName, UsageError


@dataclass(frozen=True, slots=True)
class StackLine:
    """One stored stack in a list; ``problem`` says why its record cannot be read."""

    stack_id: str
    workload: str = ""
    levers: tuple[str, ...] = ()
    status: str = ""
    problem: str = ""


@contextlib.contextmanager
def runs_alone(*runs: str) -> Iterator[None]:
    """For commands about verdicts: a name that no run has and a stack has is said to be one.

    Raises:
        UsageError: it is a stack's.
    """
    try:
        yield
    except UnknownName:
        for run in runs:
            if known(run):
                raise UsageError(
                    f"{run} is a stack: a measurement, no verdict",
                    cure=f"levergate stack --show {run} prints it",
                ) from None
        raise


def with_stacks(report: SyncReport) -> SyncReport:
    """What ``sync`` did with the runs, and with the stacks that MLflow lacks."""
    if not stack_store.ids(_home()):
        return report
    from experiments.stack import pipeline as stack_pipeline

    return _joined(report, stack_pipeline.sync())


def with_campaigns(report: SyncReport) -> SyncReport:
    """The same with the reported rows of campaigns."""
    if not any((_home().root / "campaigns").glob("*/reported.json")):
        return report
    from experiments.campaign.sync import sync

    return _joined(report, sync())


def _joined(report: SyncReport, also: SyncReport) -> SyncReport:
    return SyncReport(
        mirrored=(*report.mirrored, *also.mirrored),
        waiting=(*report.waiting, *also.waiting),
        reason=report.reason or also.reason,
    )


def known(run: str) -> bool:
    """Whether the beginning of an id is a stack's."""
    return stack_store.known(_home(), run)


def listed(lever: str | None) -> tuple[StackLine, ...]:
    """The stored stacks, newest first; with a lever, those that hold it."""
    found = tuple(_line(name) for name in reversed(stack_store.ids(_home())))
    if lever is None:
        return found
    return tuple(line for line in found if any(_name(one) == lever for one in line.levers))


def say(line: StackLine) -> str:
    """A stack on one line."""
    if line.problem:
        return f"stack {line.stack_id}: {line.problem}"
    return f"stack {line.stack_id} {line.status}: {line.workload}, {' + '.join(line.levers)}"


def _line(stack_id: str) -> StackLine:
    try:
        record = stack_store.reread(_home(), stack_id)
    except StoreError as error:
        return StackLine(stack_id, problem=error.message)
    levers = tuple(str(one) for one in record.spec.levers)
    return StackLine(stack_id, record.spec.workload, levers, record.status)


def _name(lever: str) -> str:
    return lever.partition("=")[0]


def _home() -> home.Home:
    return home.find(os.environ, Path.cwd())
