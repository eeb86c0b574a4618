"""Under which policies a calibration counts false verdicts: those of the levers of its workload."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.prepare import RunFacts
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts, Workload
from levers import catalog
from levers.policy import GatingPolicy

NO_LEVER_YET = "any"
"""Whose policy it is where no lever of the catalog works on the workload."""


def policies_of(
    workload: Workload, parameters: Mapping[str, Scalar], device: DeviceFacts
) -> tuple[tuple[tuple[str, ...], GatingPolicy], ...]:
    """Each policy here with its levers; without any, all axes are primaries at the usual bar."""
    facts = RunFacts(device.device_type, workload.name, parameters, workload.sites(parameters))
    reported = [axis.name for axis in workload.axes(parameters)]
    found: dict[GatingPolicy, list[str]] = {}
    for entry in catalog.listed():
        if entry.lever is None or workload.name not in entry.lever.workloads:
            continue
        policy = entry.lever.policy(facts)
        if any(policy.is_primary(name) for name in reported):
            found.setdefault(policy, []).append(entry.name)
    if not found:
        return (((NO_LEVER_YET,), GatingPolicy(primaries=("*",))),)
    return tuple((tuple(names), policy) for policy, names in found.items())
