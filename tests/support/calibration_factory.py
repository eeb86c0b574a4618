"""Records of equal arms on the stub workload, and the calibrations that they amount to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from experiments.calibration.rates import Draws
from experiments.calibration.records import Calibration
from experiments.calibration.run import evaluate
from experiments.environment import cpu_device
from experiments.plan import make_plan
from experiments.records import Sample, Timing
from experiments.run_record import RunRecord
from experiments.spec import NO_LEVER
from tests.support import records_factory, runs
from tests.support.stub_workload import DEFAULTS, RATE, STEP, STUB

CREATED = "2026-03-01T08:00:00+00:00"
FEW = Draws(runs=200, calibrations=5, runs_each=20)
PARAMETERS = {**DEFAULTS, "clock": "virtual"}


def samples(
    pairs: int, *, sd: float = 0.01, position: float = 0.0, seed: int = 1
) -> tuple[Sample, ...]:
    """Samples of equal arms: noise sd of d, and how much slower a second process is."""
    rng = np.random.default_rng(seed)
    found = []
    for run in make_plan(seed, pairs).runs:
        slowness = float(rng.normal(0, sd / math.sqrt(2))) + position * run.position
        values = {RATE: 100 * math.exp(-slowness), STEP: 10 * math.exp(slowness)}
        found.append(
            Sample(
                pair=run.pair,
                arm=run.arm,
                position=run.position,
                values=values,
                start_s=0.1,
                warmup_s=0.2,
                measured_s=1.0,
                wall_s=1.5,
                started_at=CREATED,
                inputs_digest="same",
                outputs_count=8,
            )
        )
    return tuple(found)


def record(pairs: int = 40, **changes: Any) -> RunRecord:
    """The spool of a calibration; ``sd``, ``position`` and ``seed`` are those of its samples."""
    drawn = {name: changes.pop(name) for name in ("sd", "position", "seed") if name in changes}
    spec = runs.spec(lever=NO_LEVER, cand="off", parameters=PARAMETERS, looks=(pairs,))
    values: dict[str, Any] = {
        "run_id": "20260301T080000-cccccc",
        "status": "running",
        "kind": "calibration",
        "spec": spec,
        "plan_digest": "p",
        "created_at": CREATED,
        "axes": STUB.axes(PARAMETERS),
        "environment": records_factory.environment(),
        "samples": samples(pairs, **drawn),
        "timing": Timing(total_s=4.0 * pairs),
    }
    return RunRecord(**{**values, **changes})


def calibration(pairs: int = 40, **changes: Any) -> Calibration:
    """What such a record amounts to."""
    return evaluate(record(pairs, **changes), cpu_device(), FEW)
