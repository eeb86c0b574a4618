"""The steps of ``calibrate`` and ``plan``, wired as in :mod:`experiments.pipeline`."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from experiments import environment
from experiments.calibration import noise as calibration_noise
from experiments.calibration import run as calibrating
from experiments.calibration import store as calibration_store
from experiments.calibration.records import Calibration
from experiments.calibration.requests import CalibrateRequest, PlanRequest
from experiments.calibration.verdict_plan import VerdictPlan
from experiments.pipeline import home
from experiments.registry.store import Registry
from experiments.requests import Listener


def calibrate(request: CalibrateRequest, listener: Listener) -> Calibration:
    """Measure pairs of equal arms, evaluate them, and store what they say.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        Uncalibrated: the device or the reference did not give enough pairs.
        KeyboardInterrupt: it was interrupted; ``--resume`` goes on.
    """
    where = home()
    with Registry.open(where.registry) as registry:
        found = calibrating.run(request, where, listener)
        calibration_store.save(registry.store, found)
    return found


def plan(request: PlanRequest) -> VerdictPlan:
    """What a verdict on a lever will take on this machine.

    Raises:
        UsageError: a name that cannot be used, or the noise of this work is not known.
    """
    device = environment.find_device(request.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    now = datetime.now(UTC).isoformat()
    with Registry.open(home().registry) as registry:
        return calibration_noise.planned(request, registry, device, now)
