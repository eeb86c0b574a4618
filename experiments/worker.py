"""The measured process: one task from a file, one result to a file, whatever happens between.

This is the process boundary: every exception of an arm becomes a failure with its kind, its stage
and its traceback. A process that dies without a word is described by the one that watches it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import baton, global_state, screening, witnessing
from experiments.autotuned import AUTOTUNED
from experiments.compilations import CompilationCounter, autotune_winners, end_compile_workers
from experiments.failure_kinds import kind_of
from experiments.files import write_atomically
from experiments.parity_records import CheckResult
from experiments.tasks import SHARE, Measurement, Outputs, Task, TaskResult
from experiments.values import Scalar
from experiments.workloads import catalog as workloads
from levers import catalog
from levers.base import Lever, claims, engaged
from levers.errors import LeverConflict, NotRestored

if TYPE_CHECKING:
    from experiments.workloads.base import Session

PROBES = {
    "op": "experiments.parity.op",
    "memcheck": "experiments.parity.memcheck",
    "graph": "experiments.parity.graph",
    "async": "experiments.parity.async_",
}
"""The module whose ``probe(task, session)`` answers this kind of task."""

SESSIONLESS = tuple(PROBES)
"""Probes of the operation alone: they get no session, which could set what a later run's does not,
and their results are found again for other parameters (:mod:`experiments.parity.cache`)."""


class Stage:
    """Where a task is; written to a file, so that a death without a word can be placed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.name = ""

    def enter(self, name: str) -> None:
        """Begin a stage."""
        self.name = name
        if self._path is not None:
            self._path.write_text(name)


def alone(session: Session) -> None:
    """One process: there is nobody to join."""


def execute(
    task: Task, stage: Stage, born: float, join: Callable[[Session], None] = alone
) -> TaskResult:
    """Do the task and describe how it ended; never raises.

    Args:
        task: what to do.
        stage: told at each step.
        born: ``time.monotonic()`` when this process was asked for.
        join: given the opened session before any of its work; a rank meets the others there.
    """
    try:
        return _execute(task, stage, born, join)
    except BaseException as error:  # noqa: BLE001 - the process boundary
        return failure(error, stage.name)


def failure(error: BaseException, stage: str) -> TaskResult:
    """The result of a task that raised."""
    return TaskResult(
        failure=kind_of(error),
        stage=stage,
        message=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
    )


def _execute(task: Task, stage: Stage, born: float, join: Callable[[Session], None]) -> TaskResult:
    stage.enter("import")
    turns = baton.of(task.arguments)
    turns.start()
    counter = CompilationCounter()
    _settle(task)
    stage.enter("levers")
    levers = [(catalog.get(one.lever), one.setting) for one in task.levers]
    claims([lever for lever, _ in levers])
    stage.enter("open")
    session = None if task.kind in SESSIONLESS else _open(task)
    if session is not None:
        join(session)
    sites = {} if session is None else session.sites
    before = global_state.take(sites)
    try:
        with _all_engaged(levers, sites, stage):
            start_s = time.monotonic() - born - turns.waited_s
            result = _do(task, session, stage, counter, turns)
            stage.enter("disable")
    finally:
        end_compile_workers()
    changed = before.changed(global_state.take(sites))
    if changed and result.measurement is not None:
        raise NotRestored(f"the arm left changed: {'; '.join(changed)}")
    return result.model_copy(update={"left_changed": changed, "start_s": start_s})


def _settle(task: Task) -> None:
    """Seed every generator and set the number of threads, before the session opens."""
    import numpy
    import torch

    random.seed(task.seed)
    numpy.random.seed(task.seed % 2**32)
    torch.manual_seed(task.seed)
    threads = task.parameters.get("threads")
    if threads is not None and task.device.split(":")[0] == "cpu":
        torch.set_num_threads(int(threads))


def _open(task: Task) -> Session:
    module, function = workloads.get(task.workload).opener.split(":")
    opener = getattr(importlib.import_module(module), function)
    session: Session = opener(task.parameters, task.own_device, task.seed, task.implementation)
    return session


@contextlib.contextmanager
def _all_engaged(
    levers: list[tuple[Lever, str]], sites: Mapping[str, Any], stage: Stage
) -> Iterator[None]:
    """Enable the levers in order; without sites (a probe of the operation) there is none to do."""
    stage.enter("enable")
    with contextlib.ExitStack() as stack:
        for lever, setting in levers if sites else []:
            before = global_state.variables()
            stack.enter_context(engaged(lever, sites, setting))
            _refuse_late(lever, before.changed(global_state.variables()))
        yield


def _refuse_late(lever: Lever, changed: tuple[str, ...]) -> None:
    """A variable that a library reads once does nothing when it is set after the library's load.

    Raises:
        LeverConflict: the lever set one while it was enabled.
    """
    late = [text for text in changed if global_state.READ_ONCE.match(text)]
    if late:
        raise LeverConflict(
            f"{lever.name} sets {'; '.join(late)} after torch was loaded, which reads it once",
            cure="declare it in the lever's environment(): the arm's process then starts with it",
        )


def _do(
    task: Task,
    session: Session | None,
    stage: Stage,
    counter: CompilationCounter,
    turns: baton.Baton | baton.Alone,
) -> TaskResult:
    if task.kind in PROBES:
        return _probe(task, session, stage)
    if session is None:
        raise ValueError(f"a {task.kind} task needs a session")
    if task.kind == "screen":
        return screening.screen(task, session, stage, counter)
    if task.kind == "outputs":
        stage.enter("outputs")
        return TaskResult(outputs=_outputs(task, session))
    stage.enter("warm-up")
    start = time.monotonic()
    session.warm_up()
    warmup_s = time.monotonic() - start
    if task.kind == "witness":
        return _witness(task, session, stage).model_copy(update={"warmup_s": warmup_s})
    if task.kind == "profile":
        stage.enter("profile")
        profiling = importlib.import_module("experiments.profiling")
        return TaskResult(profile=profiling.profile(task, session), warmup_s=warmup_s)
    stage.enter("measure")
    session.pace = turns.turn
    turns.turn()
    counter.watch()
    waited_s = turns.waited_s
    compiled, start = counter.count(), time.monotonic()
    measurement = session.measure()
    measured_s = time.monotonic() - start - (turns.waited_s - waited_s)
    turns.close()
    _check_finite(measurement)
    compiled = counter.count() - compiled
    return TaskResult(
        measurement=measurement,
        plans=witnessing.stack_plans(session, task.arguments.get(witnessing.ARGUMENT, ())),
        warmup_s=warmup_s,
        measured_s=measured_s,
        compilations=compiled,
        facts={**_autotuned(), "turns": turns.turns, "waited_s": turns.waited_s},
    )


def _outputs(task: Task, session: Session) -> Outputs:
    """The outputs that were asked for; repeated, where asked, to see whether they stay the same."""
    arguments = dict(task.arguments)
    repeats = int(arguments.pop("repeats", 1))
    first = session.outputs(arguments)
    unsteady: set[str] = set()
    for _ in range(1, repeats):
        again = session.outputs(arguments).digests
        names = {*first.digests, *again}
        unsteady |= {name for name in names if first.digests.get(name) != again.get(name)}
    return first.model_copy(update={"unsteady": tuple(sorted(unsteady))})


def _probe(task: Task, session: Session | None, stage: Stage) -> TaskResult:
    stage.enter(task.kind)
    module = importlib.import_module(PROBES[task.kind])
    if SHARE in task.arguments:
        share: TaskResult = module.shared(task)
        return share
    check: CheckResult = module.probe(task, session)
    return TaskResult(check=check)


def _check_finite(measurement: Measurement) -> None:
    """A figure must be finite and above zero, since effects are log ratios.

    Raises:
        FloatingPointError: one is not.
    """
    bad = {n: v for n, v in measurement.values.items() if not (math.isfinite(v) and v > 0)}
    if bad:
        raise FloatingPointError(f"figures that are not finite and positive: {bad}")


def _witness(task: Task, session: Session, stage: Stage) -> TaskResult:
    """Run each axis's work once, untimed, and read at the subject's sites what ran there.

    The reference is read through the same lever's ``witness``, which only reads observations.
    """
    stage.enter("witness")
    subject = None if task.subject is None else task.subject.lever
    found = witnessing.subject_pass(session, subject)
    return TaskResult(
        plans=found.plans, launches=found.launches, facts={**_autotuned(), **found.facts}
    )


def _autotuned() -> dict[str, Scalar]:
    """The winners of this process's autotuners: another process may have chosen others."""
    return {f"{AUTOTUNED}{name}": best for name, best in autotune_winners().items()}


def run_files(task_path: Path, result_path: Path, stage_path: Path, born: float) -> None:
    """Read a task, do it, and leave its result whole on disk."""
    task = Task.model_validate_json(task_path.read_bytes())
    stage = Stage(stage_path)
    if task.ranks > 1:
        from experiments.ranks.group import run_group

        result = run_group(task, str(task_path.with_suffix("")), stage.enter, born)
    else:
        result = execute(task, stage, born)
    sys.stdout.flush()
    sys.stderr.flush()
    write_atomically(result_path, result.model_dump_json())


if __name__ == "__main__":
    run_files(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
    os._exit(0)
