"""The known workloads: built in, by entry point, by ``$LEVERGATE_WORKLOADS``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

from experiments.workloads.base import Workload
from levers.catalog import installed
from levers.errors import BadParameter, UnknownName

WORKLOADS: dict[str, str] = {
    "decode": "experiments.workloads.decode.workload:DECODE",
    "slat_flow": "experiments.workloads.flow.workload:SLAT_FLOW",
    "ss_flow": "experiments.workloads.flow.workload:SS_FLOW",
}
"""``module:ATTRIBUTE`` of each built-in workload."""

GROUP = "levergate.workloads"
VARIABLE = "LEVERGATE_WORKLOADS"


def known() -> Mapping[str, str]:
    """``module:ATTRIBUTE`` by name; a built-in name cannot be taken by anything else.

    Raises:
        BadParameter: ``$LEVERGATE_WORKLOADS`` is not a list of ``name=module:ATTRIBUTE``, or takes
            the name of a built-in workload.
    """
    points = installed(GROUP)
    return {**_declared(), **{point.name: point.value for point in points}, **WORKLOADS}


def _declared() -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, target = part.partition("=")
        if not name or target.count(":") != 1:
            raise BadParameter(
                f"{VARIABLE} holds {part!r}",
                cure="write name=module:ATTRIBUTE, with commas between",
            )
        if name in WORKLOADS and target != WORKLOADS[name]:
            raise BadParameter(
                f"{VARIABLE} gives {name!r}, which is built in, another target",
                cure="use another name: what is measured must be what its name says",
            )
        found[name] = target
    return found


def get(name: str) -> Workload:
    """The workload of that name.

    Raises:
        UnknownName: there is none; the message suggests the closest.
        BadParameter: its module does not import, or lacks the attribute.
    """
    targets = known()
    if name not in targets:
        raise UnknownName("workload", name, targets)
    module, attribute = targets[name].split(":")
    try:
        workload: Workload = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BadParameter(
            f"workload {name!r} cannot be loaded from {targets[name]}: {error}",
            cure=f"correct its entry point or ${VARIABLE}",
        ) from error
    return workload
