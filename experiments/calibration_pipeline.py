"""The steps of ``calibrate`` and ``plan``, wired as in :mod:`experiments.pipeline`."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from experiments import calibrating, calibration_noise, calibration_store, environment
from experiments.calibrated_plan import VerdictPlan
from experiments.calibration import Calibration
from experiments.calibration_requests import CalibrateRequest, PlanRequest
from experiments.pipeline import home
from experiments.registry import Registry
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
