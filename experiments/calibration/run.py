"""Measuring a calibration: A/A pairs through the real runner, then their noise and error rates.

Both arms are the reference without any lever. The processes, blocks, orders, limits and the spool
are those of an A/B, so that what is measured is the noise that a verdict will meet.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil

from experiments import environment, locks, preflight, resuming, run_setup
from experiments.calibration.policies import policies_of
from experiments.calibration.rates import (
    FEWEST_BLOCKS,
    FULL,
    Draws,
    axis_noise,
    noise_of,
    policy_rates,
)
from experiments.calibration.records import Calibration
from experiments.calibration.requests import CalibrateRequest
from experiments.conditions import Limits, limits_for
from experiments.environment import Device
from experiments.executor import Executor
from experiments.frozen import FrozenEnvironment, frozen_environment
from experiments.home import Home
from experiments.lanes import Lanes, executor_for
from experiments.plan import BLOCK_PAIRS, Plan, make_plan
from experiments.prepare import takes_turns
from experiments.ranks.needs import with_ranks
from experiments.requests import Listener
from experiments.run_record import RunRecord
from experiments.runner import Collector, End, interruptible
from experiments.sample_times import SampleTimes, estimate_s
from experiments.simulated_runs import Rules
from experiments.sitting import LIMITS_NOTE, SETTLE_S
from experiments.spec import DEFAULT_LOOKS, NO_LEVER, AbSpec
from experiments.spool import Spool, new_run_id
from experiments.stats import paired
from experiments.telemetry import Sampler, probe_for
from experiments.values import digest_of
from experiments.workloads import catalog as workloads
from experiments.workloads.base import Workload
from levers.base import OFF
from levers.errors import LevergateError, UsageError
from levers.policy import GatingPolicy

FOLDER = "calibrations"
"""Below the home: the spools, apart from the runs, since none of them is a verdict."""

FEWEST_PAIRS = FEWEST_BLOCKS * BLOCK_PAIRS


class Uncalibrated(LevergateError):
    """Too few valid pairs came, or the reference failed: an outcome of the machine, no mistake."""


def run(request: CalibrateRequest, home: Home, listener: Listener) -> Calibration:
    """Measure and evaluate; nothing is stored but the spool.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        Uncalibrated: the device or the reference did not give enough pairs.
        KeyboardInterrupt: it was interrupted; the message says how to go on.
    """
    spool, device = _resume(request, home) if request.resume else _begin(request, home, listener)
    with spool, interruptible():
        record = spool.record()
        end = _collect(record, device, spool, home, listener)
        record = spool.record()
    if end == "interrupted":
        raise KeyboardInterrupt(
            f"calibration {record.run_id} was interrupted; go on with "
            f"levergate calibrate --resume {record.run_id}"
        )
    listener.on_stage("evaluate", f"{FULL.runs} resampled runs through the stopping loop")
    return evaluate(record, device)


def _begin(request: CalibrateRequest, home: Home, listener: Listener) -> tuple[Spool, Device]:
    """Resolve the request, check that it fits, and open its spool."""
    if request.pairs < FEWEST_PAIRS:
        raise UsageError(
            f"{request.pairs} pairs cannot calibrate", cure=f"use --pairs {FEWEST_PAIRS} or more"
        )
    device = environment.find_device(request.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    workload = workloads.get(request.workload or next(iter(workloads.known())))
    spec = _spec(request, workload, device)
    plan = _plan(spec)
    needs = workload.needs(spec.parameters, device.facts)
    preflight.check(needs, preflight.free_now(home.root, device), home.root)
    times = SampleTimes(needs.seconds_per_sample)
    listener.on_estimate(estimate_s(plan, times, 0.0, spec.budget_s), plan.pairs)
    frozen = _frozen(spec, device, workload, home)
    now = datetime.now(UTC)
    head = RunRecord(
        run_id=new_run_id(now),
        status="running",
        kind="calibration",
        spec=spec,
        plan_digest=digest_of(spec.content_digest() + plan.plan_digest),
        created_at=now.isoformat(),
        axes=workload.axes(spec.parameters),
        environment=environment.describe(device, frozen.recorded(), frozen.removed, frozen.facts()),
    )
    spool = Spool.create(home.root / FOLDER, head)
    listener.on_stage("calibration", head.run_id)
    return spool, device


def _spec(request: CalibrateRequest, workload: Workload, device: Device) -> AbSpec:
    """An A/A as a comparison: one look at its end, and no lever in either arm."""
    pairs = -(-request.pairs // BLOCK_PAIRS) * BLOCK_PAIRS
    return AbSpec(
        lever=NO_LEVER,
        ref=OFF,
        cand=OFF,
        workload=workload.name,
        parameters=dict(with_ranks(workload, workload.resolve(request.settings, device.facts), 1)),
        device=device.facts.device,
        seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
        looks=(pairs,),
        budget_s=request.budget_s,
        policy=GatingPolicy(primaries=("*",)),
        interleaved=takes_turns(device),
    )


def _plan(spec: AbSpec) -> Plan:
    return make_plan(spec.seed, spec.looks[-1])


def _frozen(spec: AbSpec, device: Device, workload: Workload, home: Home) -> FrozenEnvironment:
    return frozen_environment(
        spec,
        device,
        workload.opener,
        environ=os.environ,
        free_memory_bytes=psutil.virtual_memory().available,
        cores=os.sched_getaffinity(0),
        arm_caches=home.cache / "arms",
    )


def _resume(request: CalibrateRequest, home: Home) -> tuple[Spool, Device]:
    spool, loaded = Spool.resume(home.root / FOLDER, str(request.resume))
    with contextlib.ExitStack() as unless_it_goes_on:
        unless_it_goes_on.callback(spool.close)
        resuming.refuse_other_calibration(request, loaded.record)
        device = run_setup.same_device(loaded.record)
        unless_it_goes_on.pop_all()
    return spool, device


def _collect(
    record: RunRecord, device: Device, spool: Spool, home: Home, listener: Listener
) -> End:
    """Measure what is missing, with the device held."""
    spec, now = record.spec, datetime.now(UTC).isoformat()
    listener.on_stage("measure", f"{spec.looks[-1]} pairs of equal arms")
    with (
        locks.device(
            home.device_locks,
            device.uuid,
            f"calibrate {spec.workload}",
            now=now,
            on_wait=listener.on_warning,
        ),
        _executor(spec, device, home) as (executor, sampler),
    ):
        if spool.noted(LIMITS_NOTE) is None:
            frozen = executor.frozen
            cores = len(os.sched_getaffinity(0)) + (frozen.measured_core is not None)
            seen = sampler.look(executor.processes, SETTLE_S)
            spool.note(LIMITS_NOTE, limits_for(seen, cores, frozen.threads).as_note())
        return _collector(spec, spool, executor, sampler, listener).collect()


@contextlib.contextmanager
def _executor(
    spec: AbSpec, device: Device, home: Home
) -> Iterator[tuple[Executor | Lanes, Sampler]]:
    workload = workloads.get(spec.workload)
    frozen = _frozen(spec, device, workload, home)
    limit_s = run_setup.hung_after_s(spec, workload, device)
    with (
        Sampler(probe_for(device)) as sampler,
        executor_for(spec, frozen, home.work, time_limit_s=limit_s, sampler=sampler) as executor,
    ):
        yield executor, sampler


def _collector(
    spec: AbSpec, spool: Spool, executor: Executor | Lanes, sampler: Sampler, listener: Listener
) -> Collector:
    noted = dict(spool.noted(LIMITS_NOTE) or {})
    noted.pop("name", None)
    return Collector(
        spec=spec,
        plan=_plan(spec),
        spool=spool,
        executor=executor,
        judge=_never,
        progress=listener,
        limits=Limits(**noted),
        watch=lambda seconds: sampler.look(executor.processes, seconds),
    )


def _never(record: RunRecord, look: int | None, *, spent: bool) -> bool:
    """No look decides anything: all pairs are wanted."""
    del record, look, spent
    return False


# --- what the pairs say ----------------------------------------------------------------------


def evaluate(record: RunRecord, device: Device, draws: Draws = FULL) -> Calibration:
    """The calibration that a record of equal arms amounts to.

    Raises:
        Uncalibrated: too few valid pairs.
    """
    spec, pairs = record.spec, paired(record.samples, record.lost)
    if len(pairs) < FEWEST_PAIRS:
        raise Uncalibrated(
            _why_not(record, len(pairs)),
            cure=f"{FEWEST_PAIRS} are needed: a larger --budget, or a repaired cause",
        )
    slowness = {
        axis.name: tuple(
            _log_slowness(axis.sign, pair.order, pair.ref[axis.name], pair.cand[axis.name])
            for pair in pairs
        )
        for axis in record.axes
        if all(axis.name in pair.ref and axis.name in pair.cand for pair in pairs)
    }
    axes = tuple(axis for axis in record.axes if axis.name in slowness)
    noise = noise_of(slowness)
    workload = workloads.get(spec.workload)
    return Calibration(
        calibration_id=record.run_id,
        created_at=record.created_at,
        workload=spec.workload,
        parameters=spec.parameters,
        device=spec.device,
        environment=record.environment,
        seed=spec.seed,
        axes=axes,
        slowness=slowness,
        lost=len({one.pair for one in record.lost}),
        seconds_per_pair=(record.timing.total_s if record.timing else 0.0) / len(pairs),
        resamples=draws.runs,
        noise=axis_noise(noise, DEFAULT_LOOKS),
        rates=tuple(
            policy_rates(levers, Rules(policy, axes), noise, spec.seed, draws)
            for levers, policy in policies_of(workload, spec.parameters, device.facts)
        ),
        warnings=tuple(_warnings(record, len(pairs))),
    )


def _log_slowness(sign: int, order: int, ref: float, cand: float) -> tuple[float, float]:
    """Log slowness of the pair's first and second process."""
    first, second = (ref, cand) if order == 1 else (cand, ref)
    return -sign * math.log(first), -sign * math.log(second)


def _why_not(record: RunRecord, pairs: int) -> str:
    said = [f"the reference {one.kind} at {one.stage}: {one.message}" for one in record.failures]
    said += [text for _, text in record.faults]
    return f"{pairs} valid pairs; {'; '.join(said) or 'the budget was spent'}"


def _warnings(record: RunRecord, pairs: int) -> Iterator[str]:
    yield from record.warnings
    if pairs < record.spec.looks[-1]:
        yield f"{pairs} of {record.spec.looks[-1]} planned pairs"
    if len({sample.inputs_digest for sample in record.samples}) > 1:
        yield "the processes worked on different inputs"
    compiled = sum(1 for sample in record.samples if sample.compilations)
    if compiled:
        yield f"{compiled} samples compiled or autotuned inside the timed part"
