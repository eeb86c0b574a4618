"""Telemetry of all devices of a group as if they were one: the worst of each quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.telemetry import Probe
from experiments.values import Scalar

LEAST = ("readings", "sm_mhz", "sm_min_mhz", "memory_mhz")
"""Quantities of which the lowest counts: a group is as fast as its slowest device."""

SUMMED = ("foreign_processes",)
WORDS = ("throttles",)


class GroupProbe:
    """Reads the devices of all ranks.

    Args:
        probes: one for each device.
    """

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = tuple(probes)

    def begin(self, own: tuple[int, ...], *, idle: bool = False) -> None:
        """A group starts below one of these of ours."""
        for probe in self._probes:
            probe.begin(own, idle=idle)

    def read(self, own: tuple[int, ...]) -> None:
        """Take one reading of each."""
        for probe in self._probes:
            probe.read(own)

    def end(self, own: tuple[int, ...]) -> Mapping[str, Scalar]:
        """Sum up all devices."""
        return together([probe.end(own) for probe in self._probes])


def together(seen: Sequence[Mapping[str, Scalar]]) -> dict[str, Scalar]:
    """One set of quantities from those of several devices."""
    found: dict[str, Scalar] = {}
    for name in dict.fromkeys(name for one in seen for name in one):
        found[name] = _together(name, [one.get(name) for one in seen])
    clocks = {one.get("application_mhz") for one in seen}
    if len(clocks) > 1:
        found["application_changed"] = True
    return found


def _together(name: str, values: Sequence[Scalar]) -> Scalar:
    if name in WORDS:
        return " ".join(dict.fromkeys(word for text in values for word in str(text or "").split()))
    if any(isinstance(value, bool) for value in values):
        return any(values)
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return values[0]
    if name in SUMMED:
        return sum(numbers)
    return min(numbers) if name in LEAST else max(numbers)
