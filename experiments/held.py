"""The device held for one purpose, with processes to start on it and a sampler that sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime

from experiments import locks
from experiments.environment import Device
from experiments.executor import Executor
from experiments.frozen import FrozenEnvironment
from experiments.home import Home
from experiments.requests import Listener
from experiments.telemetry import Sampler, probe_for


@contextlib.contextmanager
def measuring(
    device: Device,
    frozen: FrozenEnvironment,
    home: Home,
    limit_s: float,
    listener: Listener,
    purpose: str = "a selection",
) -> Iterator[tuple[Executor, Sampler]]:
    """Hold the device, with processes to start on it and a sampler that sees it."""
    now = datetime.now(UTC).isoformat()
    with (
        locks.devices(
            home.device_locks, device.uuids, purpose, now=now, on_wait=listener.on_warning
        ),
        Sampler(probe_for(device)) as sampler,
        Executor(frozen, home.work, time_limit_s=limit_s, watcher=sampler) as executor,
    ):
        yield executor, sampler
