"""What a GPU did meanwhile: clock, power, temperature and throttle reasons, seen from outside.

A process of its own reads NVML some 20 times a second, so that nothing of it runs in the measured
one. Both stamp with the machine's monotonic clock, and any stretch of time can be asked for later:

    with watching(device) as watch:
        began = time.monotonic()
        ...
        seen = watch.during(began, time.monotonic())

``python -m benchmarks.device_watch UUID [SECONDS]`` is that process: a line of JSON for each
reading, until its standard input closes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from experiments.environment import Device
from experiments.telemetry_cuda import THROTTLES

PERIOD_S = 0.05
START_S = 30.0
"""Within which the first reading has to come."""

MARGIN_S = 0.03
"""A reading so much outside of a stretch still counts: NVML's own values are that old."""

POWER, THERMAL = 0, 1
"""Of ``nvmlPerfPolicyType_t``."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the GPU; what it does not report is None.

    Attributes:
        at_s: monotonic seconds.
        power_w: of the moment where the driver knows it, else its mean over the last second.
        energy_j: counted since the driver was loaded.
        limit_w: the power limit that is enforced.
        throttles: bits of :data:`THROTTLES`.
        power_limited_s: counted seconds below the clock asked for, for the power limit.
        heat_limited_s: the same for the temperature.
    """

    at_s: float
    sm_mhz: int | None
    memory_mhz: int | None
    power_w: float | None
    energy_j: float | None
    limit_w: float | None
    temperature_c: int | None
    throttles: int | None
    power_limited_s: float | None
    heat_limited_s: float | None


class Reader:
    """Reads one GPU by its UUID."""

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        self._nvml: Any = nvml or importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)

    def now(self) -> Reading:
        """One reading."""
        api, gpu = self._nvml, self._handle
        return Reading(
            at_s=time.monotonic(),
            sm_mhz=self._told(lambda: api.nvmlDeviceGetClockInfo(gpu, 1)),
            memory_mhz=self._told(lambda: api.nvmlDeviceGetClockInfo(gpu, 2)),
            power_w=self._power_w(),
            energy_j=self._told(lambda: api.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3),
            limit_w=self._told(lambda: api.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3),
            temperature_c=self._told(lambda: api.nvmlDeviceGetTemperature(gpu, 0)),
            throttles=self._told(lambda: self._ask_throttles(gpu)),
            power_limited_s=self._told(lambda: self._limited_s(POWER)),
            heat_limited_s=self._told(lambda: self._limited_s(THERMAL)),
        )

    @property
    def _ask_throttles(self) -> Any:
        """The query under its present or its former name."""
        new = getattr(self._nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        return new or self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons

    def _power_w(self) -> float | None:
        """The moment's power: ``nvmlDeviceGetPowerUsage`` is a mean over a second on Hopper."""
        instant = self._told(self._instant_power_w)
        if instant is not None:
            return float(instant)
        mean = self._told(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._handle))
        return None if mean is None else float(mean) / 1e3

    def _instant_power_w(self) -> float | None:
        field = getattr(self._nvml, "NVML_FI_DEV_POWER_INSTANT", None)
        if field is None:
            return None
        (found,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, [field])
        return None if found.nvmlReturn else float(found.value.uiVal) / 1e3

    def _limited_s(self, policy: int) -> float:
        status = self._nvml.nvmlDeviceGetViolationStatus(self._handle, policy)
        return float(status.violationTime) / 1e9

    def _told(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


def summary(readings: Sequence[Reading]) -> dict[str, Any]:
    """Clock, power, temperature and throttle reasons of a stretch; what was never told is absent.

    ``throttled`` is the share of the readings that name a reason; ``power_limited`` and
    ``heat_limited`` are the shares of the time that the driver itself counted.
    """
    found: dict[str, Any] = {"readings": len(readings)}
    told = _told(readings, "sm_mhz")
    if told:
        found |= {"sm_mhz_min": min(told), "sm_mhz_median": statistics.median(told)}
    for name, of, key in (
        ("power_w", statistics.median, "power_w_median"), ("power_w", max, "power_w_max"),
        ("limit_w", min, "limit_w"), ("temperature_c", max, "temperature_c_max"),
        ("memory_mhz", min, "memory_mhz_min"),
    ):  # fmt: skip
        if told := _told(readings, name):
            found[key] = of(told)
    bits = _told(readings, "throttles")
    found["throttled"] = {
        reason: share
        for reason, bit in THROTTLES.items()
        if (share := sum(1 for one in bits if int(one) & bit) / max(1, len(bits)))
    }
    for name, key in (
        ("energy_j", "power_w_mean"), ("power_limited_s", "power_limited"),
        ("heat_limited_s", "heat_limited"),
    ):  # fmt: skip
        if (rate := _rate(readings, name)) is not None:
            found[key] = rate
    return found


def _told(readings: Sequence[Reading], name: str) -> list[float]:
    return [value for one in readings if (value := getattr(one, name)) is not None]


def _rate(readings: Sequence[Reading], name: str) -> float | None:
    """How fast a counter grew, or None where it was not told at two moments."""
    told = [one for one in readings if getattr(one, name) is not None]
    if len(told) < 2:
        return None
    span = told[-1].at_s - told[0].at_s
    return float((getattr(told[-1], name) - getattr(told[0], name)) / span)


class Watch:
    """The readings of the process that writes them to a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def readings(self) -> list[Reading]:
        """All so far; a line that is being written is not one yet."""
        with open(self._path) as lines:  # noqa: PTH123 - a name from tempfile
            return [Reading(**json.loads(line)) for line in lines if line.endswith("\n")]

    def during(self, start_s: float, stop_s: float) -> dict[str, Any]:
        """What was seen between two moments of :func:`time.monotonic`."""
        first, last = start_s - MARGIN_S, stop_s + MARGIN_S
        return summary([one for one in self.readings() if first <= one.at_s <= last])


class Unwatched:
    """Of a device that NVML does not know: nothing is seen."""

    def during(self, start_s: float, stop_s: float) -> dict[str, Any]:
        """No reading."""
        del start_s, stop_s
        return summary([])


@contextlib.contextmanager
def watching(device: Device, period_s: float = PERIOD_S) -> Iterator[Watch | Unwatched]:
    """A watch of a GPU, or of nothing on a CPU."""
    if not device.is_cuda:
        yield Unwatched()
        return
    module = [sys.executable, "-m", "benchmarks.device_watch"]
    with watched_by([*module, device.uuid, str(period_s)]) as watch:
        yield watch


@contextlib.contextmanager
def watched_by(command: Sequence[str]) -> Iterator[Watch]:
    """The readings that a command prints, from its first on; it ends when its input closes.

    Raises:
        RuntimeError: it ended, or its first reading did not come.
    """
    with tempfile.NamedTemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=errors)
        try:
            watch = Watch(out.name)
            until = time.monotonic() + START_S
            while not watch.readings():
                if process.poll() is not None or time.monotonic() > until:
                    errors.seek(0)
                    raise RuntimeError(f"no reading of the device: {errors.read()[-400:]}")
                time.sleep(0.02)
            yield watch
        finally:
            process.communicate()


def line(seen: Mapping[str, Any]) -> str:
    """What a person reads of a stretch."""
    if "sm_mhz_median" not in seen:
        return "clock not known"
    text = f"{seen['sm_mhz_median']:.0f} MHz (least {seen['sm_mhz_min']:.0f})"
    power = seen.get("power_w_mean", seen.get("power_w_median"))
    if power is not None:
        text += f", {power:.0f} of {seen.get('limit_w', float('nan')):.0f} W"
    if "temperature_c_max" in seen:
        text += f", {seen['temperature_c_max']:.0f} C"
    reasons = [f"{name} {share:.0%}" for name, share in seen["throttled"].items()]
    if "power_limited" in seen:
        reasons.append(f"power-limited {seen['power_limited']:.0%} of the time")
    return ", ".join([text, *reasons])


def main() -> int:
    reader = Reader(sys.argv[1])
    period_s = float(sys.argv[2]) if len(sys.argv) > 2 else PERIOD_S
    while True:
        print(json.dumps(asdict(reader.now())), flush=True)
        if select.select([sys.stdin], [], [], period_s)[0] and not sys.stdin.read(1):
            return 0


if __name__ == "__main__":
    raise SystemExit(main())
