"""What every kind of run settles at its start: levers beside, room, environment, head, limits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime

import psutil

from experiments import (
    beside,
    environment,
    locks,
    now,
    preflight,
)
from experiments.environment import Device
from experiments.frozen import FrozenEnvironment, frozen_environment
from experiments.heartbeat import compilation_s
from experiments.home import Home
from experiments.prepare import Comparison
from experiments.ranks.merge import best_possible
from experiments.ranks.needs import needs_of, packages_of
from experiments.records import Environment
from experiments.registry.store import Registry
from experiments.requests import Listener
from experiments.run_record import RunRecord
from experiments.sample_times import estimate_s, first_look_s, times_of
from experiments.spec import AbSpec, LeverSetting
from experiments.spool import new_run_id
from experiments.values import digest_of
from experiments.workloads.base import Needs, Workload
from levers import catalog
from levers.errors import BadParameter, BrokenLever, UnknownName

LEAST_TIME_LIMIT_S = 120.0
"""No process is called hung before this: a first compilation takes a minute."""

SLOWEST = 20.0
"""How many times its estimate a process may take; beyond it is hung."""


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


def check_room(
    comparison: Comparison, home: Home, listener: Listener, *, timed: bool = True
) -> None:
    """Refuse a run that cannot fit, and say what it will take, before anything is written.

    Args:
        comparison: what is compared.
        home: where it is stored.
        listener: told what the samples will take.
        timed: whether there will be samples; parity alone has no estimate.
    """
    spec, plan = comparison.spec, comparison.plan
    check_fits(comparison, home)
    times = times_of(comparison.workload, spec.parameters, comparison.device.facts, spec.oracle)
    preflight.check_budget(spec.budget_s, first_look_s(plan, spec.looks, times))
    if not timed:
        return
    seconds = estimate_s(plan, times, 0.0, spec.budget_s)
    listener.on_estimate(seconds + compilation_s(comparison.lever), plan.pairs)


def check_fits(comparison: Comparison, home: Home, *, held: bool = False) -> Needs:
    """Refuse what does not fit, the models of the tokens too; returns what a sample needs.

    Args:
        comparison: what is compared.
        home: where it is stored.
        held: whether this process holds the device. Where another one does, its memory will be
            free once it has gone, so that only what could never fit is refused before.

    Raises:
        BadParameter: memory or disk would not do.
    """
    spec, device = comparison.spec, comparison.device
    every = (spec.parameters, *(one.parameters for one in spec.tokens_on))
    found = [needs_of(comparison.workload, one, device.facts) for one in every]
    free = preflight.free_now(home.root, device)
    if not held and locks.holders_of(home.device_locks, device.uuids):
        free = preflight.once_alone(free, device)
    for needs in found:
        preflight.check(needs, free, home.root)
    return found[0]


def room_held(comparison: Comparison, home: Home, name: str) -> None:
    """Check again once the device is held: who held it before may have left something there.

    Raises:
        BadParameter: memory or disk would not do; ``name`` is what is on disk, to be gone on with.
    """
    try:
        check_fits(comparison, home, held=True)
    except BadParameter as short:
        cure = f"{short.cure}; then go on with --resume {name}"
        raise BadParameter(short.message, cure=cure) from short


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


def same_device(record: RunRecord) -> Device:
    """The device on which the run began.

    Raises:
        BadParameter: another host, device or stack: its pairs would not be comparable.
    """
    then = record.environment
    name = then.device_uuid if then.device_type == "cuda" else "cpu"
    device = environment.find_device(name, ranks=record.spec.ranks)
    here = environment.describe(device, {}, {}, {}, packages_of(record.spec.parameters))
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


def time_limit_s(comparison: Comparison) -> float:
    """After this time a process of the comparison counts as hung."""
    return hung_after_s(comparison.spec, comparison.workload, comparison.device)


def hung_after_s(spec: AbSpec, workload: Workload, device: Device) -> float:
    """After this time a process counts as hung: far beyond what the workload says it takes."""
    needs = needs_of(workload, spec.parameters, device.facts)
    return needs.time_limit_s or max(LEAST_TIME_LIMIT_S, SLOWEST * needs.seconds_per_sample)
