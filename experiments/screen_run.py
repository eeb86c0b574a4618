"""A screen: several settings measured in turn inside one process, to order them. No verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from experiments import environment, formats, held, preflight, prepare, run_setup
from experiments.binding import watched
from experiments.family import run as family_run
from experiments.files import write_atomically
from experiments.home import Home, make_folder
from experiments.prepare import Comparison
from experiments.registry.store import Registry
from experiments.requests import AbRequest, Listener
from experiments.runner import interruptible
from experiments.screen_records import ScreenRecord, rows_of
from experiments.screening import FEWEST_ROUNDS
from experiments.spool import new_run_id
from experiments.tasks import Task, TaskResult
from levers.errors import BadParameter

SCREENS = "screens"
"""Folder of the home that holds the screens; the registry knows nothing of them."""

ROUNDS = 6
"""Rounds at most: three orders and their reverses."""

SLACK = 4.0
"""How many times its estimate the process may take before it counts as hung."""

SECONDS = 120.0
"""Without ``--budget``, no further two rounds begin after this time."""


def run(
    request: AbRequest,
    settings: Sequence[str],
    home: Home,
    registry: Registry,
    listener: Listener,
) -> ScreenRecord:
    """Screen the settings.

    Args:
        request: as for an A/B; ``budget_s`` bounds the rounds.
        settings: the candidates in canonical form.
        home: caches, work files and locks.
        registry: read for the levers that are on in this scope.
        listener: hears the stages.

    Raises:
        UsageError: the request cannot be run, or the lever needs a process for each setting.
    """
    listener.on_stage("screen", "one process, no verdict")
    device = environment.find_device(request.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    seeded = replace(request, seed=family_run.seed_of(request, settings))
    alone = prepare.compare(replace(seeded, cand=settings[0]), device)
    stack = run_setup.stack_for(registry, alone, listener, request.beside)
    comparisons = [prepare.compare(replace(seeded, cand=one), device, stack) for one in settings]
    one, began = comparisons[0], time.monotonic()
    _refuse(comparisons, home)
    seconds = request.budget_s or SECONDS
    _check_room(one, len(settings), seconds, home, listener)
    result = _measured(one, settings, home, seconds, listener)
    return _record(one, settings, result, time.monotonic() - began)


def save(home: Home, record: ScreenRecord) -> Path:
    """Write a screen, wholly or not at all; returns its path."""
    path = make_folder(home.root / SCREENS) / f"{record.screen_id}.json"
    write_atomically(path, record.model_dump_json())
    return path


def _refuse(comparisons: Sequence[Comparison], home: Home) -> None:
    """A setting that must be there from a process's start cannot be switched inside one.

    Raises:
        BadParameter: one is; or one cannot run here.
    """
    for comparison in comparisons:
        named = f"{comparison.spec.lever}={comparison.spec.cand}"
        for reason in comparison.unmet:
            raise BadParameter(f"{named} cannot run here: {reason}", cure="leave it out of --cand")
        fresh = run_setup.frozen_for(comparison, home).fresh_interpreter
        if fresh:
            raise BadParameter(
                f"no screen inside one process: {fresh}", cure="measure it without --screen"
            )


def _check_room(
    one: Comparison, count: int, seconds: float, home: Home, listener: Listener
) -> None:
    """Refuse a screen that cannot fit, and say what it will take."""
    needs = one.workload.needs(one.spec.parameters, one.device.facts)
    preflight.check(needs, preflight.free_now(home.root, one.device), home.root)
    fewest_s = FEWEST_ROUNDS * (count + 1) * needs.seconds_per_sample
    most_s = min(max(seconds, fewest_s), ROUNDS / FEWEST_ROUNDS * fewest_s)
    listener.on_stage(
        "screen", f"{formats.count(count, 'setting')}, about {formats.duration(most_s)}"
    )


def _measured(
    one: Comparison, settings: Sequence[str], home: Home, seconds: float, listener: Listener
) -> TaskResult:
    frozen = watched(run_setup.frozen_for(one, home), one)
    visit_s = one.workload.needs(one.spec.parameters, one.device.facts).seconds_per_sample
    fewest_s = FEWEST_ROUNDS * (len(settings) + 1) * visit_s
    limit_s = run_setup.time_limit_s(one) + SLACK * max(seconds, fewest_s)
    task = Task(
        kind="screen",
        arm="ref",
        workload=one.spec.workload,
        parameters=one.spec.parameters,
        device=one.spec.device,
        seed=one.spec.seed,
        levers=one.spec.stack,
        arguments={
            "lever": one.spec.lever,
            "settings": [one.spec.ref, *settings],
            "rounds": ROUNDS,
            "seconds": seconds,
        },
    )
    with (
        interruptible(),
        held.measuring(one.device, frozen, home, limit_s, listener) as (executor, _),
    ):
        return executor.run(task).result


def _record(
    one: Comparison, settings: Sequence[str], result: TaskResult, total_s: float
) -> ScreenRecord:
    spec, now = one.spec, datetime.now(UTC)
    axes = one.workload.axes(spec.parameters)
    primaries = tuple(axis.name for axis in axes if spec.policy.is_primary(axis.name))
    here = environment.describe(one.device, {}, {}, {})
    return ScreenRecord(
        screen_id=new_run_id(now),
        created_at=now.isoformat(),
        lever=spec.lever,
        ref=spec.ref,
        workload=spec.workload,
        parameters=spec.parameters,
        device=spec.device,
        device_kind=here.device_kind,
        stack=here.stack,
        seed=spec.seed,
        axes=axes,
        primaries=primaries,
        rows=rows_of(spec.ref, settings, axes, primaries, result.visits),
        rounds=max((visit.round for visit in result.visits), default=-1) + 1,
        visits=result.visits,
        failure=_failure(spec.ref, result),
        left_changed=result.left_changed,
        beside=spec.stack,
        total_s=total_s,
    )


def _failure(ref: str, result: TaskResult) -> str:
    """Why there is no order: the process ended, or the reference could not run."""
    if result.failure is not None:
        return f"the process {result.failure} at {result.stage}: {result.message}"
    broken = [one for one in result.visits if one.setting == ref and one.failure is not None]
    return f"the reference {broken[0].failure}: {broken[0].message}" if broken else ""
