"""Where a plan's noise comes from: the last calibration, else the last runs, else nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import select

from experiments.calibration import store as calibration_store
from experiments.calibration.rates import FEWEST_BLOCKS, Noise, noise_of
from experiments.calibration.records import Calibration
from experiments.calibration.requests import PlanRequest
from experiments.calibration.verdict_plan import KnownNoise, VerdictPlan, plan_verdict
from experiments.environment import Device, describe
from experiments.plan import BLOCK_PAIRS
from experiments.prepare import Comparison, compare
from experiments.records import Environment
from experiments.registry.store import Registry
from experiments.registry.tables import RUNS
from experiments.replay import seconds_per_pair
from experiments.requests import AbRequest
from experiments.run_record import RunRecord
from experiments.simulated_effects import Floats
from experiments.simulated_runs import Rules
from experiments.stats import fitted, log_ratios, paired
from levers import catalog
from levers.base import OFF, Settings
from levers.errors import UsageError
from levers.policy import Axis

MOST_RUNS = 8
"""How many of the last runs are read for their noise."""

FEWEST_PAIRS = FEWEST_BLOCKS * BLOCK_PAIRS


def planned(request: PlanRequest, registry: Registry, device: Device, now: str) -> VerdictPlan:
    """What a verdict will take, from the noise that is known of this machine.

    Raises:
        UsageError: a name that cannot be used, or no noise is known: it must calibrate first.
    """
    lever = catalog.get(request.lever)
    asked = AbRequest(
        lever=lever.name,
        cand=_some_setting(lever.settings),
        workload=request.workload,
        settings=request.settings,
        seed=0,
        oracle=request.oracle,
        max_pairs=request.max_pairs,
    )
    comparison = compare(asked, device)
    spec, here = comparison.spec, describe(device, {}, {}, {})
    runs = _last_runs(registry, comparison, here)
    known = _calibrated(registry, comparison, here, now) or _from_runs(comparison, runs)
    if known is None:
        chosen = "".join(f" --set {name}={value}" for name, value in request.settings.items())
        raise UsageError(
            f"the noise of {spec.workload} with these parameters on this machine is not known",
            cure=f"levergate calibrate {spec.workload}{chosen}",
        )
    axes = tuple(
        axis for axis in comparison.workload.axes(spec.parameters) if axis.name in known.noise.axes
    )
    return plan_verdict(
        spec.lever,
        spec.workload,
        Rules(spec.policy, axes, spec.looks),
        known,
        effect=request.effect,
        on=request.on,
        battery_s=_battery_s(spec.lever, runs),
    )


def _calibrated(
    registry: Registry, comparison: Comparison, here: Environment, now: str
) -> KnownNoise | None:
    """The noise of the last calibration; its blocks have no oracle pair, a run's may."""
    spec = comparison.spec
    place = spec.workload, spec.parameters, here.device_kind, here.host
    with registry.store.reading() as connection:
        found = calibration_store.latest(connection, *place, here.versions)
    if found is None:
        return None
    oracle = 1 + (1 / BLOCK_PAIRS if spec.oracle else 0)
    return KnownNoise(
        noise_of(found.slowness),
        _source(found, found.stale_for(here.versions, now)),
        found.seconds_per_pair * oracle,
    )


def _source(found: Calibration, stale: str) -> str:
    mark = f", STALE: {stale}" if stale else ""
    return f"calibration {found.calibration_id}, {found.pairs} pairs{mark}"


def _last_runs(
    registry: Registry, comparison: Comparison, here: Environment
) -> tuple[RunRecord, ...]:
    """The last decided runs of this work on this machine and stack, newest first."""
    spec = comparison.spec
    query = (
        select(RUNS.c.run_id)
        .where(RUNS.c.workload == spec.workload, RUNS.c.device_kind == here.device_kind)
        .where(RUNS.c.host == here.host, RUNS.c.status == "decided", RUNS.c.pairs > 0)
        .order_by(RUNS.c.created_at.desc())
        .limit(MOST_RUNS)
    )
    with registry.store.reading() as connection:
        ids = connection.scalars(query).all()
    records = [registry.load(run_id) for run_id in ids]
    return tuple(
        one
        for one in records
        if dict(one.spec.parameters) == dict(spec.parameters)
        and dict(one.environment.versions) == dict(here.versions)
    )


def _from_runs(comparison: Comparison, runs: Sequence[RunRecord]) -> KnownNoise | None:
    """What the pairs of the last runs show beside their effects."""
    axes = comparison.workload.axes(comparison.spec.parameters)
    pieces: dict[str, Floats] = {
        run.run_id: piece for run in runs if (piece := _residuals(run, axes)) is not None
    }
    if sum(len(piece) for piece in pieces.values()) < FEWEST_PAIRS:
        return None
    costs = [cost for run in runs if (cost := seconds_per_pair(run.samples)) is not None]
    return KnownNoise(
        Noise(tuple(axis.name for axis in axes), np.concatenate(list(pieces.values()))),
        f"the last runs, {', '.join(pieces)} (not calibrated)",
        float(np.median(costs)),
    )


def _residuals(run: RunRecord, axes: Sequence[Axis]) -> Floats | None:
    """Differences (n, A) between the processes of whole blocks, the run's effects taken out."""
    pairs = paired(run.samples, run.lost)
    whole = pairs[: len(pairs) // BLOCK_PAIRS * BLOCK_PAIRS]
    orders = np.array([pair.order for pair in whole], dtype=np.float64)
    columns = []
    for axis in axes:
        d = log_ratios(axis, whole)
        fit = fitted(d, orders) if d is not None else None
        if d is None or fit is None:
            return None
        columns.append(orders * (d - fit.estimate))
    return np.stack(columns, axis=1) if columns else None


def _battery_s(lever: str, runs: Sequence[RunRecord]) -> float | None:
    for run in runs:
        if run.spec.lever == lever and run.timing is not None:
            return run.timing.parity_s
    return None


def _some_setting(settings: Settings) -> str:
    """A setting other than off: the bar and the axes do not depend on which."""
    named = [name for name in settings.names if name != OFF]
    return named[0] if named else str(settings.minimum)
