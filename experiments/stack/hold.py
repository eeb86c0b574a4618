"""Parity of every row of a stack, before anything of it is timed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from experiments import heartbeat
from experiments.binding import bind, cache_of
from experiments.executor import Executor
from experiments.home import Home
from experiments.lanes import Lanes
from experiments.parity.bench import Ahead, Execute
from experiments.parity.cache import ParityCache
from experiments.parity_crew import crew_of
from experiments.records import ArmFailure
from experiments.requests import Listener
from experiments.stack.parity import Remembered, foreseen, held, refusal
from experiments.stack.prepare import Stack
from experiments.stack.records import StackRecord
from experiments.stack.stage import Cell


def hold(
    stack: Stack,
    cells: list[Cell],
    executor: Executor | Lanes,
    home: Home,
    head: StackRecord,
    listener: Listener,
) -> None:
    """Hold each row's levers against none, the whole stack first; what is on disk is not repeated.

    A row that fails is never timed, and nothing is where the whole stack fails.

    Args:
        stack: the rows, resolved.
        cells: each row with its spool.
        executor: runs processes one by one.
        home: where results are kept and task files lie.
        head: the stack's record, for the environment that kept results are bound to.
        listener: hears what happens.
    """
    listener.on_stage("parity", "is each set of levers as right as none?")
    whole = stack.comparison(stack.spec.rows[stack.spec.whole])
    cache = cache_of(home, head.environment, whole, executor.frozen)
    timed = any(cell.spool.record().samples for cell in cells)
    for cell in (one for one in cells if one.row.levers):
        comparison, variables = stack.comparison(cell.row), executor.frozen.variables
        bind(cell.spool, comparison, variables, listener, timed=timed)
    whole_first = sorted(cells, key=lambda cell: cell.row.index != stack.spec.whole)
    left = [cell for cell in whole_first if cell.row.levers and cell.parity() is None]
    if not left:
        return
    with contextlib.ExitStack() as running:
        ahead: Ahead | None = None
        execute: Execute = heartbeat.running(executor, listener)
        limit_s = executor.time_limit_s
        make = crew_of(stack.comparison(left[0].row), executor.frozen, home, time_limit_s=limit_s)
        if make is not None:
            crew = running.enter_context(make())
            ahead = crew.ahead
            ahead(foreseen(((stack.comparison(one.row), one.row.levers) for one in left), cache))
            execute = heartbeat.waiting(crew, listener)
        _hold_each(stack, left, Remembered(execute), ahead, cache, listener)


def _hold_each(
    stack: Stack,
    cells: Iterable[Cell],
    execute: Execute,
    ahead: Ahead | None,
    cache: ParityCache,
    listener: Listener,
) -> None:
    for cell in cells:
        comparison, levers = stack.comparison(cell.row), cell.row.levers
        report, failures = held(comparison, levers, execute, cache, listener.on_check, ahead)
        for failure in failures:
            cell.spool.failure(failure)
        why = refusal(report, stack.spec.demands)
        cell.spool.parity(report)
        if why and not failures:
            cell.spool.failure(ArmFailure(arm="cand", kind="unmet", stage="parity", message=why))
        if why and cell.row.index == stack.spec.whole:
            return


def refused(stack: Stack, cells: list[Cell]) -> str:
    """Why the whole table shows no speed: parity of a step of the waterfall did not pass."""
    for cell in reversed(cells[: stack.spec.whole + 1]):
        report = cell.parity()
        why = "" if report is None else refusal(report, stack.spec.demands)
        if why:
            return f"{cell.row.name}: {why}"
    return ""


def inputs_changed(cells: Iterable[Cell]) -> tuple[tuple[str, str], ...]:
    """The first process that read other weights than the stack began with, as a fault."""
    failures = (one for cell in cells for one in cell.evidence().failures)
    changed = (one for one in failures if one.kind == "inputs-changed")
    found = next((f"{one.arm} at {one.stage}: {one.message}" for one in changed), "")
    return (("inputs-differ", found),) if found else ()
