"""The kernel's view of the processors while a process is measured on them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.values import Scalar

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Reading:
    """Processor time since boot, in seconds: of everything, stolen by the host, and of ours."""

    at_s: float
    busy_s: float
    steal_s: float
    own_s: float


class CpuProbe:
    """Reads ``/proc`` at the beginning and the end of a measured process: its counters add up."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._first: Reading | None = None
        self._mhz: list[float] = []

    def begin(self, own: tuple[int, ...], *, idle: bool = False) -> None:  # noqa: ARG002 - as above
        """Note the counters; those of ours are told from others' in either case."""
        self._mhz = []
        self._first = self.now(own)

    def read(self, own: tuple[int, ...]) -> None:  # noqa: ARG002 - the protocol's argument
        """Note the frequency; the counters add up by themselves."""
        frequency = mean_mhz(self._proc)
        if frequency:
            self._mhz.append(frequency)

    def end(self, own: tuple[int, ...]) -> Mapping[str, Scalar]:
        """The load of others, in cores; the share of steal; the mean frequency in MHz."""
        first, last = self._first, self.now(own)
        if first is None:
            return {}
        return {**summary(first, last), **({"mhz": _mean(self._mhz)} if self._mhz else {})}

    def now(self, own: tuple[int, ...]) -> Reading:
        """The counters now; ``own`` are roots of process trees whose ended children count too."""
        busy_s, steal_s = _totals(self._proc)
        return Reading(
            at_s=time.monotonic(),
            busy_s=busy_s,
            steal_s=steal_s,
            own_s=sum(_tree_s(self._proc, pid) for pid in own),
        )


def summary(first: Reading, last: Reading) -> dict[str, Scalar]:
    """What the difference of two readings says.

    The clock of ``/proc`` ticks every 10 ms, so a short interval may give a small negative load of
    others, which is 0.
    """
    wall_s = max(last.at_s - first.at_s, 1 / TICKS_PER_S)
    others_s = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
    return {
        "foreign_cores": max(0.0, others_s) / wall_s,
        "steal_share": max(0.0, last.steal_s - first.steal_s) / wall_s,
    }


def _totals(proc: Path) -> tuple[float, float]:
    """Seconds of work (user, nice, system, interrupts) and of steal, over all processors."""
    fields = (proc / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq) / TICKS_PER_S, steal / TICKS_PER_S


def _tree_s(proc: Path, pid: int) -> float:
    """Processor time in seconds of a process and of its children that were waited for."""
    try:
        fields = (proc / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    children = fields[13:15] if pid != os.getpid() else ("0", "0")
    return sum(int(field) for field in (*fields[11:13], *children)) / TICKS_PER_S


def mean_mhz(proc: Path = PROC) -> float:
    """Mean frequency of the processors in MHz; 0 where the kernel does not say."""
    try:
        text = (proc / "cpuinfo").read_text()
    except OSError:
        return 0.0
    return _mean([float(x.split(":")[1]) for x in text.splitlines() if x.startswith("cpu MHz")])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
