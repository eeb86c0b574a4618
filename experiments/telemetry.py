"""What the device did while a process was measured, seen from outside that process.

A thread of the parent reads NVML (by the GPU's UUID) or ``/proc`` at a fixed period; nothing of it
runs in the measured process. ``begin`` and ``end`` bracket one measured process and give the
scalars of its sample: clocks, throttle reasons, power, temperature, memory and foreign processes
on a GPU; load of others, steal time and frequency on a CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol

from experiments.environment import Device
from experiments.values import Scalar

PERIOD_S = 0.1
"""Between two readings of a GPU: a throttle reason of a tenth of a second is not missed."""

Own = Callable[[], tuple[int, ...]]
"""Gives the roots of our own process trees."""


class Probe(Protocol):
    """Reads one device; :mod:`experiments.telemetry_cuda` and ``telemetry_cpu`` have one each."""

    def begin(self, own: tuple[int, ...], *, idle: bool = False) -> None:
        """A measured process starts below one of these of ours; none does where it is idle."""

    def read(self, own: tuple[int, ...]) -> None:
        """Take one reading."""

    def end(self, own: tuple[int, ...]) -> Mapping[str, Scalar]:
        """Sum up the readings since ``begin``."""


def probe_for(device: Device) -> Probe:
    """The reader of a device."""
    if device.is_cuda:
        from experiments.ranks.telemetry import GroupProbe
        from experiments.telemetry_cuda import CudaProbe

        probes = [CudaProbe(uuid) for uuid in device.uuids]
        return GroupProbe(probes) if device.peers else probes[0]
    from experiments.telemetry_cpu import CpuProbe

    return CpuProbe()


class Sampler:
    """Reads a probe from a thread of its own while a measured process runs.

    Args:
        probe: the device's reader.
        period_s: seconds between readings; 0 reads at the beginning and the end only.
    """

    def __init__(self, probe: Probe, period_s: float = PERIOD_S) -> None:
        self.probe = probe
        self._period_s = period_s
        self._own: Own = tuple
        self._measuring = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="telemetry", daemon=True)

    def __enter__(self) -> Sampler:
        if self._period_s > 0:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._measuring.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def begin(self, own: Own) -> None:
        """A measured process starts; readings count from here."""
        self._begin(own, idle=False)

    def _begin(self, own: Own, *, idle: bool) -> None:
        self._own = own
        with self._lock:
            self.probe.begin(own(), idle=idle)
        self._measuring.set()

    def end(self) -> Mapping[str, Scalar]:
        """It ended: what was seen meanwhile."""
        self._measuring.clear()
        with self._lock:
            return self.probe.end(self._own())

    def look(self, own: Own, seconds: float) -> Mapping[str, Scalar]:
        """What the device does in the next ``seconds``, while nothing is measured."""
        self._begin(own, idle=True)
        self._closing.wait(seconds)
        return self.end()

    def _loop(self) -> None:
        while not self._closing.is_set():
            self._measuring.wait()
            with self._lock:
                if self._measuring.is_set() and not self._closing.is_set():
                    self.probe.read(self._own())
            self._closing.wait(self._period_s)
