"""One stack from its request to its record: begin or resume, hold the device, parity, blocks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from experiments import environment, locks, resuming, run_setup, token_models
from experiments.binding import watched
from experiments.code_watch import CODE_CHANGED, CodeChanged
from experiments.conditions import Limits, limits_for
from experiments.executor import Executor
from experiments.home import Home, make_folder
from experiments.lanes import Lanes, executor_for
from experiments.prepare import Comparison
from experiments.ranks.needs import packages_of
from experiments.records import Environment
from experiments.registry.store import Registry
from experiments.requests import Listener
from experiments.roofline.task import profiled
from experiments.run_record import RunRecord
from experiments.runner import interruptible
from experiments.sample_times import times_of
from experiments.sitting import LIMITS_NOTE, SETTLE_S
from experiments.spec import ranks_of
from experiments.spool import Spool, new_run_id
from experiments.stack import prepare as stack_prepare
from experiments.stack import store as stack_store
from experiments.stack.hold import hold, inputs_changed, refused
from experiments.stack.plan import FEWEST_BLOCKS
from experiments.stack.prepare import Stack
from experiments.stack.records import StackRecord
from experiments.stack.requests import StackRequest
from experiments.stack.stage import Cell, Stage
from experiments.stack.stats import analysed
from experiments.telemetry import Sampler, probe_for
from levers.errors import BadParameter, UsageError

PARITY_PROCESSES = 2
"""Processes that hold one row against truth: its training curve, and its gradients."""


def run(request: StackRequest, home: Home, registry: Registry, listener: Listener) -> StackRecord:
    """Measure a stack; its record and its bundle are on disk when this returns.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        StoreError: the stack cannot be written; what was reported is on disk.
        KeyboardInterrupt: it was interrupted; its id is in the message.
    """
    listener.on_stage("prepare", "levers, rows, device")
    if request.resume is None:
        stack, head = _begin(request, home, registry, listener)
    else:
        stack, head = _resume(request, request.resume, home)
    folder = home.root / stack_store.FOLDER / head.stack_id
    with contextlib.ExitStack() as spools, interruptible():
        try:
            cells = _cells(stack, head, folder, spools)
            record = _measured(stack, head, cells, home, listener, profile=request.profile)
        except KeyboardInterrupt as stopped:
            said = f"stack {head.stack_id} was interrupted; go on with --resume {head.stack_id}"
            raise KeyboardInterrupt(said) from stopped
    stack_store.save(folder, record)
    return record


# --- before the first process -------------------------------------------------------------------


def _begin(
    request: StackRequest, home: Home, registry: Registry, listener: Listener
) -> tuple[Stack, StackRecord]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = environment.find_device(request.device, visible=visible, ranks=request.ranks)
    stack = stack_prepare.resolved(request, device, registry, listener)
    stack = with_tokens(stack, request.tokens_on)
    _check_room(stack, home, listener)
    now = datetime.now(UTC)
    head = StackRecord(
        stack_id=new_run_id(now),
        status="running",
        created_at=now.isoformat(),
        spec=stack.spec,
        axes=stack.workload.axes(stack.spec.parameters),
        environment=_here(stack, home),
    )
    folder = make_folder(home.root / stack_store.FOLDER / head.stack_id)
    stack_store.begin(folder, head)
    listener.on_stage("stack", f"{head.stack_id}: {len(stack.spec.rows)} rows")
    return stack, head


def with_tokens(stack: Stack, texts: Sequence[str]) -> Stack:
    """The stack with the tokens of the whole compared on these models.

    Raises:
        UsageError: one cannot be used, or there is no lever to be compared.
    """
    if not texts:
        return stack
    spec = stack.spec
    if not spec.levers:
        raise UsageError(
            "a stack without levers has no tokens to compare",
            cure=f"leave out {token_models.OPTION}",
        )
    work = token_models.Work(stack.workload, spec.parameters, stack.device, spec.levers)
    found = {"tokens_on": token_models.asked(texts, work)}
    return replace(stack, spec=spec.model_copy(update=found))


def _resume(request: StackRequest, stack_id: str, home: Home) -> tuple[Stack, StackRecord]:
    """The stack to go on with, on the device on which it began.

    Raises:
        UsageError: it is measured, was begun with other options than those typed, or began on
            another device or stack of versions.
    """
    head = stack_store.load(stack_store.find(home, stack_id))
    if head.status != "running":
        raise UsageError(f"stack {head.stack_id} is {head.status}", cure="start a new stack")
    resuming.refuse_other_stack(request, head)
    stack = resumable(head)
    token_models.refuse_changed(head.spec, stack.workload, stack.device)
    return stack, head


def resumable(head: StackRecord) -> Stack:
    """The stack of a record, on the device on which it was measured.

    Raises:
        UsageError: another device, other versions, or a lever that has changed since.
    """
    then = head.environment
    name = then.device_uuid if then.device_type == "cuda" else "cpu"
    device = environment.find_device(name, ranks=ranks_of(head.spec.parameters))
    stack = stack_prepare.again(head.spec, device)
    here = environment.describe(device, {}, {}, {}, packages_of(head.spec.parameters))
    if (then.device_uuid, then.stack) != (here.device_uuid, here.stack):
        raise BadParameter(
            f"stack {head.stack_id} began on another device or other versions: {then.stack}",
            cure="go on with it there, or start a new stack here",
        )
    return stack


def _here(stack: Stack, home: Home) -> Environment:
    frozen = run_setup.frozen_for(stack.comparison(stack.spec.rows[stack.spec.whole]), home)
    packages = packages_of(stack.spec.parameters)
    return environment.describe(
        stack.device, frozen.recorded(), frozen.removed, frozen.facts(), packages
    )


def _check_room(stack: Stack, home: Home, listener: Listener) -> None:
    """Refuse a stack that cannot fit, and say what it will take, before anything is written."""
    spec = stack.spec
    needs = run_setup.check_fits(stack.comparison(spec.rows[spec.whole]), home)
    per_block = 2 * (len(spec.rows) - 1) if spec.interleaved else len(spec.rows)
    oracle = spec.oracle.oracle if spec.oracle else None
    times = times_of(stack.workload, spec.parameters, stack.device.facts, oracle)
    oracles = spec.blocks if oracle else 0
    timed_s = (per_block * spec.blocks - oracles) * times.arm_s + times.oracles(oracles)
    parity_s = len(spec.rows) * PARITY_PROCESSES * needs.seconds_per_sample
    timed_s = timed_s if spec.budget_s is None else min(timed_s, spec.budget_s)
    listener.on_estimate(timed_s + parity_s, spec.blocks)


def _cells(
    stack: Stack, head: StackRecord, folder: Path, spools: contextlib.ExitStack
) -> list[Cell]:
    """The rows, each with a spool of its own that this process writes."""
    cells = []
    for row in stack.spec.rows:
        comparison = stack.comparison(row)
        name = f"{head.stack_id}-{row.index:02d}"
        first = run_setup.head_of(comparison, head.environment)
        first = first.model_copy(update={"run_id": name, "kind": "stack"})
        cells.append(Cell(row, comparison.spec, spools.enter_context(_spool(folder, first))))
    return cells


def _spool(folder: Path, head: RunRecord) -> Spool:
    if (folder / head.run_id).is_dir():
        return Spool.resume(folder, head.run_id)[0]
    return Spool.create(folder, head)


# --- the measured part --------------------------------------------------------------------------


def _measured(
    stack: Stack,
    head: StackRecord,
    cells: list[Cell],
    home: Home,
    listener: Listener,
    *,
    profile: bool,
) -> StackRecord:
    """Hold the device, pass parity, measure the blocks, and draw the tables."""
    began = time.monotonic()
    comparison = stack.comparison(stack.spec.rows[stack.spec.whole])
    with _measuring(comparison, home, listener) as (executor, sampler):
        if not any(cell.spool.record().samples for cell in cells):
            run_setup.room_held(comparison, home, head.stack_id)
        try:
            hold(stack, cells, executor, home, head, listener)
        except CodeChanged as error:
            changed = ((CODE_CHANGED, error.message),)
            return _record(head, cells, "code was edited", changed, began)
        why = refused(stack, cells)
        if why:
            faults = inputs_changed(cells) or (("parity-failed", why),)
            return _record(head, cells, "parity did not pass", faults, began)
        stage = Stage(
            spec=stack.spec,
            cells=cells,
            executor=executor,
            limits=_limits(cells[0].spool, executor, sampler),
            listener=listener,
            watch=lambda seconds: sampler.look(executor.processes, seconds),
            spent_s=sum(s.wall_s for cell in cells for s in cell.spool.record().samples),
        )
        listener.on_stage("measure", f"{len(cells)} rows, {stack.spec.blocks} blocks")
        stopped = stage.go()
        record = _record(head, cells, stopped, stage.faults, began)
        if profile and record.status == "measured":
            listener.on_stage("profile", "the whole stack, in a process of its own")
            arm, mine = stack.spec.rows[stack.spec.whole].arm, record.of_whole
            found = profiled(comparison.spec, stack.spec.levers, arm, executor, mine)
            record = record.model_copy(update=found.changes())
    return record


@contextlib.contextmanager
def _measuring(
    comparison: Comparison, home: Home, listener: Listener
) -> Iterator[tuple[Executor | Lanes, Sampler]]:
    """Hold the device, with processes to start on it and a sampler that sees it."""
    spec, now = comparison.spec, datetime.now(UTC).isoformat()
    frozen = watched(run_setup.frozen_for(comparison, home), comparison)
    limit_s = run_setup.time_limit_s(comparison)
    folder, uuids = home.device_locks, comparison.device.uuids
    purpose, on_wait = f"stack {spec.workload}", listener.on_warning
    with (
        locks.devices(folder, uuids, purpose, now=now, on_wait=on_wait),
        Sampler(probe_for(comparison.device)) as sampler,
        executor_for(spec, frozen, home.work, time_limit_s=limit_s, sampler=sampler) as executor,
    ):
        yield executor, sampler


def _limits(spool: Spool, executor: Executor | Lanes, sampler: Sampler) -> Limits:
    """What loses a block: declared at the first sitting, before the first sample."""
    noted = spool.noted(LIMITS_NOTE)
    if noted is not None:
        return Limits(**{name: value for name, value in noted.items() if name != "name"})
    seen = sampler.look(executor.processes, SETTLE_S)
    cores = len(os.sched_getaffinity(0)) + (executor.frozen.measured_core is not None)
    limits = limits_for(seen, cores, executor.frozen.threads)
    spool.note(LIMITS_NOTE, limits.as_note())
    return limits


def _record(
    head: StackRecord,
    cells: list[Cell],
    stopped: str,
    faults: tuple[tuple[str, str], ...],
    began: float,
) -> StackRecord:
    """The record of all that is on disk, with its tables where they may be drawn."""
    evidence = tuple(cell.evidence() for cell in cells)
    found = head.model_copy(update={"evidence": evidence, "stopped": stopped})
    analysis = analysed(found) if not faults else found.analysis
    if not faults and not analysis.blocks:
        text = f"{stopped}; fewer than {FEWEST_BLOCKS} whole blocks, and no interval without them"
        faults = (("too-little-recorded", text),)
    changes = {
        "status": "refused" if faults else "measured",
        "analysis": analysis,
        "faults": faults,
        "total_s": time.monotonic() - began,
    }
    return StackRecord.model_validate({**dict(found), **changes})
