"""The explicit list of workloads; each is imported when it is asked for."""

from __future__ import annotations

import importlib

from experiments.workloads.base import Workload
from levers.errors import UnknownName

WORKLOADS: dict[str, str] = {
    "decode": "experiments.workloads.decode.workload:DECODE",
    "slat_flow": "experiments.workloads.slat_flow.workload:SLAT_FLOW",
}


def get(name: str) -> Workload:
    """The workload of that name.

    Raises:
        UnknownName: there is none; the message suggests the closest.
    """
    if name not in WORKLOADS:
        raise UnknownName("workload", name, WORKLOADS)
    module, attribute = WORKLOADS[name].split(":")
    workload: Workload = getattr(importlib.import_module(module), attribute)
    return workload
