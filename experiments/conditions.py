"""What makes a pair lost and a device unusable: declared before the run, and blind to the arm.

Pure rules over telemetry. A power cap that a denser kernel reaches belongs to its arm and is only
reported; thermal and hardware slowdowns, changed application clocks and foreign processes are not
the arm's doing and cost the pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from experiments.values import Scalar

SLOWDOWNS = ("hw-slowdown", "sw-thermal", "hw-thermal", "hw-power-brake")
"""NVML's reasons that are blind to the arm (see :mod:`experiments.telemetry_cuda`)."""

LOW_CLOCK = 0.7
"""Share of the maximum SM clock below which a GPU at work, with no power cap, counts as throttled.

A published fault is a clock stuck at 59 % of the maximum; boost states in use stay above 80 %.
"""

FOREIGN_CORES = 0.5
"""Cores of other processes' work at which a run counts as disturbed, beyond the cores that it
leaves free and beyond the load that was there when it began."""

STEAL_SHARE = 0.25
"""Cores taken by the hypervisor beyond what was taken when the run began."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run, stored before its first sample.

    Attributes:
        foreign_cores: other processes' work on the CPU, in cores.
        steal_share: hypervisor steal, in cores.
        application_mhz: application clock of the GPU when the run began; 0 where there is none.
        low_clock: share of the maximum SM clock.
    """

    foreign_cores: float = float("inf")
    steal_share: float = float("inf")
    application_mhz: int = 0
    low_clock: float = LOW_CLOCK

    def as_note(self) -> dict[str, Scalar]:
        """For the journal; an infinite limit is not written."""
        return {name: value for name, value in asdict(self).items() if value != float("inf")}


def limits_for(start: Mapping[str, Scalar], cores: int, threads: int | None) -> Limits:
    """The limits that follow from what was seen before the first sample.

    On the CPU a machine that carries a steady load is not refused (both arms share it, and the
    interval widens by itself); work that arrives later is what costs a pair.

    Args:
        start: telemetry of an interval in which nothing was measured.
        cores: cores that this process may use.
        threads: threads of a measured process, or None where it takes them all.
    """
    free = cores - (threads or cores)
    return Limits(
        foreign_cores=max(float(free), _number(start, "foreign_cores")) + FOREIGN_CORES,
        steal_share=_number(start, "steal_share") + STEAL_SHARE,
        application_mhz=int(_number(start, "application_mhz")),
    )


def lost_cause(seen: Mapping[str, Scalar], limits: Limits) -> str:
    """Why a run with this telemetry costs its pair; empty where nothing disturbed it."""
    throttled = throttle_cause(seen, limits)
    if throttled:
        return throttled
    return busy_cause(seen, limits)


def throttle_cause(seen: Mapping[str, Scalar], limits: Limits) -> str:
    """The slowdown that the device was in; empty where there was none."""
    names = str(seen.get("throttles") or "").split()
    found = [name for name in names if name in SLOWDOWNS]
    if found:
        return f"throttled: {', '.join(found)}"
    mhz = int(_number(seen, "application_mhz"))
    if seen.get("application_changed") or (
        limits.application_mhz and mhz != limits.application_mhz
    ):
        return f"application clock changed: {limits.application_mhz} MHz -> {mhz} MHz"
    share = _number(seen, "sm_mhz") / (_number(seen, "sm_max_mhz") or 1.0)
    if seen.get("busy") and "power-cap" not in names and 0 < share < limits.low_clock:
        return f"throttled: SM clock at {share:.0%} of its maximum, with no power cap"
    return ""


def busy_cause(seen: Mapping[str, Scalar], limits: Limits) -> str:
    """What else used the device; empty where nothing did."""
    processes = int(_number(seen, "foreign_processes"))
    if processes:
        return f"foreign process: {processes} on the device"
    load = _number(seen, "foreign_cores")
    if load > limits.foreign_cores:
        return f"foreign load: {load:.2f} cores, limit {limits.foreign_cores:.2f}"
    steal = _number(seen, "steal_share")
    if steal > limits.steal_share:
        return f"steal: {steal:.2f} cores, limit {limits.steal_share:.2f}"
    return ""


def fault_of(cause: str) -> str:
    """The reason code of a run that ends for this cause: ``throttled`` or ``device-busy``."""
    return "throttled" if cause.startswith(("throttled", "application clock")) else "device-busy"


def _number(seen: Mapping[str, Scalar], name: str) -> float:
    value = seen.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
