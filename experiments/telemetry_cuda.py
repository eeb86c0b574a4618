"""NVML's view of one GPU while a process is measured on it."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from experiments.values import Scalar

THROTTLES: Mapping[str, int] = {
    "gpu-idle": 0x1,
    "application-clocks": 0x2,
    "power-cap": 0x4,
    "hw-slowdown": 0x8,
    "sync-boost": 0x10,
    "sw-thermal": 0x20,
    "hw-thermal": 0x40,
    "hw-power-brake": 0x80,
    "display-clocks": 0x100,
}
"""Reasons for a clock below its maximum (``nvml.h``, nvmlClocksEventReasons)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the GPU; processes are ids as NVML reports them."""

    sm_mhz: int
    memory_mhz: int
    application_mhz: int
    power_w: float
    temperature_c: int
    used_bytes: int
    utilisation: int
    throttles: int
    processes: frozenset[int]


class CudaProbe:
    """Reads one GPU by its UUID: a busy neighbour is not mistaken for it, nor it for one."""

    def __init__(self, uuid: str, nvml: ModuleType | Any | None = None) -> None:
        self._nvml: Any = nvml or importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._readings: list[Reading] = []
        self._own: set[int] = set()
        self._idle = False
        self.max_mhz = int(self._nvml.nvmlDeviceGetMaxClockInfo(self._handle, 1))

    def begin(self, own: tuple[int, ...], *, idle: bool = False) -> None:
        """Forget the readings and take the first."""
        self._readings, self._own = [], set()
        self._idle = idle
        self.read(own)

    def read(self, own: tuple[int, ...]) -> None:
        """Take one reading, and note which processes are ours now."""
        self._own |= _tree(own)
        self._readings.append(self.now())

    def end(self, own: tuple[int, ...]) -> Mapping[str, Scalar]:
        """Take the last reading and sum up."""
        self.read(own)
        return {
            **summary(self._readings, self.max_mhz),
            "foreign_processes": foreign(self._readings, self._own, idle=self._idle),
        }

    def now(self) -> Reading:
        """One reading; what this GPU does not report is 0."""
        api, handle = self._nvml, self._handle
        clock = self._or_zero
        return Reading(
            sm_mhz=clock(api.nvmlDeviceGetClockInfo, handle, 1),
            memory_mhz=clock(api.nvmlDeviceGetClockInfo, handle, 2),
            application_mhz=clock(api.nvmlDeviceGetApplicationsClock, handle, 1),
            power_w=clock(api.nvmlDeviceGetPowerUsage, handle) / 1000,
            temperature_c=clock(api.nvmlDeviceGetTemperature, handle, 0),
            used_bytes=int(api.nvmlDeviceGetMemoryInfo(handle).used),
            utilisation=clock(lambda gpu: api.nvmlDeviceGetUtilizationRates(gpu).gpu, handle),
            throttles=clock(_throttle_reasons(api), handle),
            processes=self._processes(),
        )

    def _processes(self) -> frozenset[int]:
        """Compute processes as the driver names them; none where it does not tell."""
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return frozenset()
        return frozenset(int(process.pid) for process in running)

    def _or_zero(self, ask: Any, *arguments: Any) -> int:
        try:
            return int(ask(*arguments))
        except self._nvml.NVMLError:
            return 0


def _throttle_reasons(api: Any) -> Any:
    """The query under its present or its former name."""
    new = getattr(api, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return new or api.nvmlDeviceGetCurrentClocksThrottleReasons


def _tree(roots: tuple[int, ...]) -> set[int]:
    """These processes and all below them."""
    found = set(roots)
    for root in roots:
        with contextlib.suppress(psutil.Error):
            found |= {child.pid for child in psutil.Process(root).children(recursive=True)}
    return found


def foreign(readings: list[Reading], own: set[int], *, idle: bool = False) -> int:
    """The most processes that were on the GPU at one time and are not ours.

    Inside a container NVML may report ids of the host, among which ours are not to be found; one
    unknown process is then taken for the measured one. Where nothing is measured all are foreign,
    under any id, that were there the whole time (one that just ended may still be listed).
    """
    counts = [len(reading.processes - own) for reading in readings]
    if idle:
        return min(counts, default=0)
    most = max(counts, default=0)
    seen = any(reading.processes & own for reading in readings)
    return most if seen or _ids_agree() else max(0, most - 1)


INITIAL_NAMESPACE = "pid:[4026531836]"
"""The host's own namespace of process ids (``PROC_PID_INIT_INO`` in ``linux/proc_ns.h``)."""


def _ids_agree(namespace: Path = Path("/proc/self/ns/pid")) -> bool:
    """Whether our process ids are those that the driver sees; not known counts as no."""
    try:
        return os.readlink(namespace) == INITIAL_NAMESPACE  # noqa: PTH115 - no path behind it
    except OSError:
        return False


def summary(readings: list[Reading], max_mhz: int) -> dict[str, Scalar]:
    """The scalars of a sample; clocks are means over the readings with the GPU at work."""
    busy = [reading for reading in readings if reading.utilisation > 0] or readings
    bits = 0
    for reading in readings:
        bits |= reading.throttles
    names = [name for name, bit in THROTTLES.items() if bits & bit and name != "gpu-idle"]
    return {
        "readings": len(readings),
        "sm_mhz": sum(r.sm_mhz for r in busy) / len(busy),
        "sm_min_mhz": min(r.sm_mhz for r in busy),
        "sm_max_mhz": max_mhz,
        "memory_mhz": sum(r.memory_mhz for r in busy) / len(busy),
        "application_mhz": readings[-1].application_mhz,
        "application_changed": len({r.application_mhz for r in readings}) > 1,
        "power_w": sum(r.power_w for r in busy) / len(busy),
        "temperature_c": max(r.temperature_c for r in readings),
        "used_bytes": max(r.used_bytes for r in readings),
        "busy": any(r.utilisation > 0 for r in readings),
        "throttles": " ".join(names),
    }
