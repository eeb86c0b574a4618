"""One run from its request to its decided record: begin or resume, hold the device, sit, decide."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime

from experiments import (
    binding,
    checked,
    environment,
    extension,
    locks,
    prepare,
    resuming,
    run_setup,
    spool_reader,
    token_models,
)
from experiments.home import Home
from experiments.lanes import executor_for
from experiments.parity_crew import crew_of
from experiments.prepare import Comparison
from experiments.ranks.needs import packages_of
from experiments.registry.store import Registry
from experiments.replay import decide_again, decide_record
from experiments.requests import AbRequest, Listener
from experiments.run_record import RunRecord
from experiments.runner import interruptible
from experiments.sitting import Sitting
from experiments.spool import Spool
from experiments.telemetry import Sampler, probe_for
from levers.errors import BadParameter, UnknownName, UsageError


def run(request: AbRequest, home: Home, registry: Registry, listener: Listener) -> RunRecord:
    """Measure and decide; the decided record is on disk when this returns.

    With ``parity_only`` a run that witness and parity let through stops there, undecided: it is on
    disk as one that was interrupted, to go on with.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        StoreError: the run cannot be written; what was reported is on disk.
        KeyboardInterrupt: the run was interrupted; its id is in the message.
    """
    listener.on_stage("prepare", "names, device, environment")
    comparison, spool = (
        _begin(request, home, registry, listener)
        if request.resume is None
        else _resume(
            _to_resume(request, home, registry), home, listener, timed=not request.parity_only
        )
    )
    with spool, interruptible():
        try:
            return _decide(comparison, spool, home, listener, request)
        except KeyboardInterrupt as stopped:
            run_id = spool.folder.name
            said = f"run {run_id} was interrupted; go on with --resume {run_id}"
            raise KeyboardInterrupt(said) from stopped


def _begin(
    request: AbRequest, home: Home, registry: Registry, listener: Listener
) -> tuple[Comparison, Spool]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = environment.find_device(request.device, visible=visible, ranks=request.ranks)
    alone = prepare.compare(request, device)
    stack = run_setup.stack_for(registry, alone, listener, request.beside)
    comparison = prepare.compare(request, device, stack) if stack else alone
    comparison = token_models.added(comparison, request.tokens_on)
    run_setup.check_room(comparison, home, listener, timed=not request.parity_only)
    frozen = run_setup.frozen_for(comparison, home)
    packages = packages_of(comparison.spec.parameters)
    here = environment.describe(device, frozen.recorded(), frozen.removed, frozen.facts(), packages)
    head = run_setup.head_of(comparison, here)
    spool = Spool.create(home.runs, head)
    for text in request.selected:
        spool.warning(text)
    listener.on_stage("run", head.run_id)
    return comparison, spool


def _on_disk(run_id: str, home: Home, registry: Registry) -> RunRecord:
    """The run's record from its spool; one that the registry alone knows came in a bundle."""
    try:
        return spool_reader.load(home.runs, run_id).record
    except UnknownName as unknown:
        try:
            stored = registry.load(run_id)
        except UnknownName:
            raise unknown from None
    raise UsageError(
        f"run {stored.run_id} was taken in from a bundle ({stored.status}, measured on "
        f"{stored.environment.host}): its journal is not here, so there is nothing to go on with",
        cure="resume it in the home where it was measured, or start a new run",
    )


def _to_resume(request: AbRequest, home: Home, registry: Registry) -> str:
    """The run to go on with: the named one, or its extension where more pairs are asked for.

    Raises:
        UnknownName: there is no such run.
        UsageError: the run is of another lever or setting, or was measured elsewhere.
    """
    record = _on_disk(str(request.resume), home, registry)
    if (of := record.spec.lever) != request.lever:
        raise UsageError(
            f"run {record.run_id} is of {of}, not of {request.lever}",
            cure=f"levergate ab {of} --resume {record.run_id}",
        )
    resuming.refuse_other_run(request, record)
    if request.parity_only:
        _refuse_checked(record)
    if not extension.wanted(request, home.runs):
        return str(request.resume)
    if record.samples:
        comparison = prepare.again(record.spec, run_setup.same_device(record))
        variables = run_setup.frozen_for(comparison, home).variables
        noted = spool_reader.noted(home.runs, record.run_id, binding.NOTE)
        now = binding.binding_of(comparison, variables)
        binding.refuse_changed(noted, now, record.run_id)
    return extension.extend(request, home.runs, datetime.now(UTC))


def _refuse_checked(record: RunRecord) -> None:
    """Refuse to check alone what is beyond its checks: nothing would be done.

    Raises:
        UsageError: the run is decided, or has samples.
    """
    if record.decision is not None:
        raise UsageError(
            f"run {record.run_id} is decided: nothing is left to check",
            cure="start a new run to check again",
        )
    if record.samples:
        raise UsageError(
            f"run {record.run_id} has passed parity and has samples: nothing is left to check",
            cure=f"{checked.resume_command(record)} goes on with them",
        )


def _resume(
    run_id: str, home: Home, listener: Listener, *, timed: bool
) -> tuple[Comparison, Spool]:
    spool, loaded = Spool.resume(home.runs, run_id)
    record = loaded.record
    with contextlib.ExitStack() as unless_it_goes_on:
        unless_it_goes_on.callback(spool.close)
        comparison = prepare.again(record.spec, run_setup.same_device(record))
        begins = not record.samples
        token_models.refuse_changed(
            record.spec, comparison.workload, comparison.device, tokens=begins
        )
        if begins:
            run_setup.check_room(comparison, home, listener, timed=timed)
        variables = run_setup.frozen_for(comparison, home).variables
        binding.bind(spool, comparison, variables, listener)
        unless_it_goes_on.pop_all()
    if loaded.torn:
        listener.on_warning("the last line of the journal was cut by the kill and is left out")
    listener.on_stage("resume", f"{len(record.samples)} samples are on disk")
    return comparison, spool


def _decide(
    comparison: Comparison, spool: Spool, home: Home, listener: Listener, request: AbRequest
) -> RunRecord:
    """Sit until there is a decision; store the decided record.

    Raises:
        KeyboardInterrupt: the run was interrupted.
    """
    before = spool.record()
    if not before.faults and not (request.parity_only and checked.let_through(before)):
        _hold(comparison, spool, home, listener, request)
    if request.parity_only and decide_record(spool.record()) is None:
        return spool.record("interrupted")
    record = spool.record()
    decision = decide_again(record)
    decided = record.model_copy(update={"status": "decided", "decision": decision})
    final = RunRecord.model_validate(decided.model_dump())
    spool.finish(final)
    return final


def _hold(
    comparison: Comparison, spool: Spool, home: Home, listener: Listener, request: AbRequest
) -> None:
    """Sit with the device held, alone where anything is timed.

    What is not timed may share it with others. Their memory and their work may then be the cause of
    a failure, so that only what passes counts, and the rest is done again with the device alone.
    """
    doubt = ""
    for shared in (True, False) if request.parity_only else (False,):
        if doubt:
            listener.on_warning(f"beside others: {doubt}; once more, with the device held alone")
        purpose = f"ab {comparison.spec.lever}{' --parity-only' if request.parity_only else ''}"
        with locks.devices(
            home.device_locks,
            comparison.device.uuids,
            purpose,
            now=datetime.now(UTC).isoformat(),
            shared=shared,
            on_wait=listener.on_warning,
        ):
            doubt = _no_room(comparison, spool, home, beside=shared)
            doubt = doubt or _sit(comparison, spool, home, listener, request, beside=shared)
        if not doubt:
            return


def _no_room(comparison: Comparison, spool: Spool, home: Home, *, beside: bool) -> str:
    """What a run that begins lacks beside others, or nothing.

    Raises:
        BadParameter: it lacks it with the device held alone.
    """
    if spool.record().samples:
        return ""
    try:
        run_setup.room_held(comparison, home, spool.folder.name)
    except BadParameter as short:
        if not beside:
            raise
        return short.message
    return ""


def _sit(
    comparison: Comparison,
    spool: Spool,
    home: Home,
    listener: Listener,
    request: AbRequest,
    *,
    beside: bool,
) -> str:
    """One sitting; what ended it beside others and is no evidence, or nothing."""
    here = spool.record().environment
    frozen = binding.watched(run_setup.frozen_for(comparison, home), comparison)
    limit_s = run_setup.time_limit_s(comparison)
    with (
        Sampler(probe_for(comparison.device)) as sampler,
        executor_for(
            comparison.spec,
            frozen,
            home.work,
            time_limit_s=limit_s,
            sampler=sampler,
        ) as executor,
    ):
        sitting = Sitting(
            comparison=comparison,
            spool=spool,
            executor=executor,
            sampler=sampler,
            cache=binding.cache_of(home, here, comparison, frozen),
            listener=listener,
            crew=crew_of(comparison, frozen, home, time_limit_s=limit_s, jobs=request.parity_jobs),
            beside=beside,
        )
        if request.parity_only:
            sitting.before_timing()
        elif sitting.go() == "interrupted":
            raise KeyboardInterrupt
        return sitting.doubt
