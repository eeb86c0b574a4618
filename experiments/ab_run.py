"""One run from its request to its decided record: begin or resume, hold the device, sit, decide."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime

import psutil

from experiments import (
    beside,
    environment,
    extension,
    locks,
    now,
    preflight,
    prepare,
    resuming,
    spool_reader,
)
from experiments.environment import Device
from experiments.frozen import FrozenEnvironment, frozen_environment
from experiments.heartbeat import compilation_s
from experiments.home import Home
from experiments.lanes import executor_for
from experiments.parity.cache import FOLDER, ParityCache
from experiments.parity_crew import crew_of
from experiments.prepare import Comparison
from experiments.ranks.merge import best_possible
from experiments.ranks.needs import needs_of
from experiments.records import Environment
from experiments.registry.store import Registry
from experiments.replay import decide_again
from experiments.requests import AbRequest, Listener
from experiments.run_record import RunRecord
from experiments.runner import estimate_s, first_look_s, interruptible
from experiments.sitting import Sitting
from experiments.spec import AbSpec, LeverSetting
from experiments.spool import Spool, new_run_id
from experiments.telemetry import Sampler, probe_for
from experiments.values import digest_of
from experiments.workloads.base import Workload
from levers import catalog
from levers.errors import BadParameter, BrokenLever, UnknownName, UsageError

LEAST_TIME_LIMIT_S = 120.0
"""No process is called hung before this: a first compilation takes a minute."""

SLOWEST = 20.0
"""How many times its estimate a process may take; beyond it is hung."""


def run(request: AbRequest, home: Home, registry: Registry, listener: Listener) -> RunRecord:
    """Measure and decide; the decided record is on disk when this returns.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        StoreError: the run cannot be written; what was reported is on disk.
        KeyboardInterrupt: the run was interrupted; its id is in the message.
    """
    listener.on_stage("prepare", "names, device, environment")
    comparison, spool = (
        _begin(request, home, registry, listener)
        if request.resume is None
        else _resume(_to_resume(request, home, registry), home, listener)
    )
    with spool, interruptible():
        try:
            return _decide(comparison, spool, home, listener, request.parity_jobs)
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
    stack = stack_for(registry, alone, listener, request.beside)
    comparison = prepare.compare(request, device, stack) if stack else alone
    check_room(comparison, home, listener)
    frozen = frozen_for(comparison, home)
    head = head_of(
        comparison, environment.describe(device, frozen.recorded(), frozen.removed, frozen.facts())
    )
    spool = Spool.create(home.runs, head)
    for text in request.selected:
        spool.warning(text)
    listener.on_stage("run", head.run_id)
    return comparison, spool


def stack_for(
    registry: Registry, comparison: Comparison, listener: Listener, texts: Sequence[str] = ()
) -> tuple[LeverSetting, ...]:
    """The levers that are on in both arms: those asked for, and the default-ON ones of this scope.

    What is left out is said.

    Args:
        registry: read for the default-ON levers.
        comparison: the lever under test, alone.
        listener: hears what is left out.
        texts: what was asked for, ``name=setting``; it goes before a default.

    Raises:
        UsageError: something that was asked for cannot be used.
    """
    spec = comparison.spec
    asked = beside.asked(texts, comparison)
    taken = {spec.lever, *(one.lever for one in asked)}
    found = registry.default_on_set(
        spec.workload,
        spec.parameters,
        comparison.device.facts.kind,
        now.stack(registry, comparison.device.driver),
    )
    for name, why in found.left_out:
        if name.split("=")[0] not in taken:
            listener.on_warning(f"{name} is not in the stack: {why}")
    kept = []
    for one in found.settings:
        if one.lever in taken:
            continue
        try:
            catalog.get(one.lever)
        except (UnknownName, BrokenLever) as error:
            listener.on_warning(f"{one} is default-ON but cannot be loaded: {error}")
            continue
        kept.append(one)
    return (*asked, *kept)


def check_room(comparison: Comparison, home: Home, listener: Listener) -> None:
    """Refuse a run that cannot fit, and say what it will take, before anything is written."""
    spec, plan = comparison.spec, comparison.plan
    needs = needs_of(comparison.workload, spec.parameters, comparison.device.facts)
    preflight.check(needs, preflight.free_now(home.root, comparison.device), home.root)
    preflight.check_budget(spec.budget_s, first_look_s(plan, spec.looks, needs.seconds_per_sample))
    seconds = estimate_s(plan, needs.seconds_per_sample, 0.0, spec.budget_s)
    listener.on_estimate(seconds + compilation_s(comparison.lever), plan.pairs)


def frozen_for(comparison: Comparison, home: Home) -> FrozenEnvironment:
    """The environment of all measured processes of this comparison, as it is now."""
    return frozen_environment(
        comparison.spec,
        comparison.device,
        comparison.workload.opener,
        environ=os.environ,
        free_memory_bytes=psutil.virtual_memory().available,
        cores=os.sched_getaffinity(0),
        arm_caches=home.cache / "arms",
    )


def head_of(comparison: Comparison, here: Environment) -> RunRecord:
    """The record before the first sample: the bar and the order are set here."""
    spec, workload, device = comparison.spec, comparison.workload, comparison.device
    now = datetime.now(UTC)
    capacities = {
        axis.name: float(device.facts.memory_bytes)
        for axis in workload.axes(spec.parameters)
        if axis.unit == "bytes"
    }
    bounds = workload.impossible(spec.parameters, device.facts)
    mode = workload.oracle_mode(spec.parameters, spec.oracle) if spec.oracle else ""
    return RunRecord(
        run_id=new_run_id(now),
        status="running",
        spec=spec,
        plan_digest=digest_of(spec.content_digest() + comparison.plan.plan_digest),
        created_at=now.isoformat(),
        axes=workload.axes(spec.parameters),
        targets=comparison.targets,
        impossible=best_possible(bounds, workload.axes(spec.parameters), spec.ranks),
        capacities=capacities,
        oracle_mode=mode,
        environment=here,
        faults=tuple(("unmet", reason) for reason in comparison.unmet),
    )


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
    if extension.wanted(request, home.runs):
        return extension.extend(request, home.runs, datetime.now(UTC))
    return str(request.resume)


def _resume(run_id: str, home: Home, listener: Listener) -> tuple[Comparison, Spool]:
    spool, loaded = Spool.resume(home.runs, run_id)
    record = loaded.record
    with contextlib.ExitStack() as unless_it_goes_on:
        unless_it_goes_on.callback(spool.close)
        comparison = prepare.again(record.spec, same_device(record))
        unless_it_goes_on.pop_all()
    if loaded.torn:
        listener.on_warning("the last line of the journal was cut by the kill and is left out")
    listener.on_stage("resume", f"{len(record.samples)} samples are on disk")
    return comparison, spool


def same_device(record: RunRecord) -> Device:
    """The device on which the run began.

    Raises:
        BadParameter: another host, device or stack: its pairs would not be comparable.
    """
    then = record.environment
    name = then.device_uuid if then.device_type == "cuda" else "cpu"
    device = environment.find_device(name, ranks=record.spec.ranks)
    here = environment.describe(device, {}, {}, {})
    devices = str(then.facts.get(environment.DEVICES, then.device_uuid))
    for what, old, new in (
        ("device", devices, str(here.facts.get(environment.DEVICES, here.device_uuid))),
        ("stack", then.stack, here.stack),
    ):
        if old != new:
            raise BadParameter(
                f"run {record.run_id} began on another {what}: {old}; here is {new}",
                cure="go on with it there, or start a new run here",
            )
    return device


def _decide(
    comparison: Comparison,
    spool: Spool,
    home: Home,
    listener: Listener,
    parity_jobs: int | None = None,
) -> RunRecord:
    """Sit until there is a decision, with the device held; store the decided record.

    Raises:
        KeyboardInterrupt: the run was interrupted.
    """
    spec = comparison.spec
    now = datetime.now(UTC).isoformat()
    if not spool.record().faults:
        with locks.devices(
            home.device_locks,
            comparison.device.uuids,
            f"ab {spec.lever}",
            now=now,
            on_wait=listener.on_warning,
        ):
            _sit(comparison, spool, home, listener, parity_jobs)
    record = spool.record()
    decision = decide_again(record)
    decided = record.model_copy(update={"status": "decided", "decision": decision})
    final = RunRecord.model_validate(decided.model_dump())
    spool.finish(final)
    return final


def time_limit_s(comparison: Comparison) -> float:
    """After this time a process of the comparison counts as hung."""
    return hung_after_s(comparison.spec, comparison.workload, comparison.device)


def hung_after_s(spec: AbSpec, workload: Workload, device: Device) -> float:
    """After this time a process counts as hung: far beyond what the workload says it takes."""
    needs = needs_of(workload, spec.parameters, device.facts)
    return needs.time_limit_s or max(LEAST_TIME_LIMIT_S, SLOWEST * needs.seconds_per_sample)


def _sit(
    comparison: Comparison, spool: Spool, home: Home, listener: Listener, parity_jobs: int | None
) -> None:
    here = spool.record().environment
    frozen, limit_s = frozen_for(comparison, home), time_limit_s(comparison)
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
            cache=ParityCache(home.root / FOLDER, f"{here.device_kind} {here.stack}"),
            listener=listener,
            crew=crew_of(comparison, frozen, home, time_limit_s=limit_s, jobs=parity_jobs),
        )
        if sitting.go() == "interrupted":
            raise KeyboardInterrupt
