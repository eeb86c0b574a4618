"""Disk, host and device memory against what a run will need, before it starts ("box safety").

A run that cannot fit is a mistake in the request, not an outcome: it is refused with
:class:`~levers.errors.BadParameter` (exit code 2) before anything is written or measured. Where a
run fits and an arm then runs out of memory, that is the arm's outcome.
"""

from __future__ import annotations

import importlib
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from experiments.environment import Device
from experiments.workloads.base import Needs
from levers.errors import BadParameter

DISK_RESERVE_BYTES = 64 << 20
"""Kept free beyond the need, so that journal and verdict of a run that fits can be written."""

MEMORY_SHARE = 0.95
"""Largest share of the free memory that a run may need."""

LEAST_SHARE = 0.5
"""Of the estimate: it may be twice the truth (a lever that is on in both arms shortens a sample),
and a budget below its half leaves no hope of a look."""


@dataclass(frozen=True, slots=True)
class Free:
    """What is free now, in bytes; ``device_bytes`` is None where the device is the host."""

    disk_bytes: int
    host_bytes: int
    device_bytes: int | None = None


def free_now(folder: Path, device: Device, nvml: ModuleType | Any | None = None) -> Free:
    """What is free on host, device and the disk of ``folder`` (or of the nearest one above)."""
    there = folder
    while not there.exists():
        there = there.parent
    return Free(
        disk_bytes=shutil.disk_usage(there).free,
        host_bytes=psutil.virtual_memory().available,
        device_bytes=_device_free(device, nvml) if device.is_cuda else None,
    )


def once_alone(free: Free, device: Device) -> Free:
    """What may be free once whoever holds the device has gone: all of its memory."""
    return Free(
        disk_bytes=free.disk_bytes,
        host_bytes=psutil.virtual_memory().total,
        device_bytes=device.facts.memory_bytes if device.is_cuda else None,
    )


def _device_free(device: Device, nvml: ModuleType | Any | None) -> int:
    """Of the device with the least: every rank needs as much."""
    api: Any = nvml or importlib.import_module("pynvml")
    api.nvmlInit()
    try:
        handles = [api.nvmlDeviceGetHandleByUUID(uuid) for uuid in device.uuids]
        return min(int(api.nvmlDeviceGetMemoryInfo(handle).free) for handle in handles)
    finally:
        api.nvmlShutdown()


def check(needs: Needs, free: Free, folder: Path) -> None:
    """Refuse a run that cannot fit.

    Raises:
        BadParameter: what is short, by how much, and the cure.
    """
    if needs.disk_bytes + DISK_RESERVE_BYTES > free.disk_bytes:
        raise BadParameter(
            f"the run needs {_gb(needs.disk_bytes + DISK_RESERVE_BYTES)} of disk at {folder}, "
            f"{_gb(free.disk_bytes)} are free",
            cure="free space, or set LEVERGATE_HOME to a larger disk",
        )
    _memory("host memory", needs.host_memory_bytes, free.host_bytes)
    if free.device_bytes is not None:
        _memory("device memory", needs.device_memory_bytes, free.device_bytes)


def check_budget(budget_s: float | None, first_look_s: float, share: float = 1.0) -> None:
    """Refuse a budget in which the first look can hardly be taken.

    Args:
        budget_s: what the measuring may take, in seconds; None is no limit.
        first_look_s: what the pairs up to the first look take, by the workload's own estimate.
        share: how much of the budget that was typed this is.

    Raises:
        BadParameter: the least budget is in the message.
    """
    if budget_s is not None and budget_s < first_look_s * LEAST_SHARE:
        raise BadParameter(
            f"--budget {budget_s / share:.0f}s ends before the first look, which takes about "
            f"{first_look_s:.0f} s: nothing could be decided",
            cure=f"give --budget {math.ceil(first_look_s / share)}s or more, or a smaller workload",
        )


def _memory(what: str, needed: int, free: int) -> None:
    if needed > free * MEMORY_SHARE:
        raise BadParameter(
            f"the run needs {_gb(needed)} of {what}, {_gb(free)} are free",
            cure="end what holds it, or choose a smaller size with --size or --set",
        )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
