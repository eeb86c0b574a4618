"""What several ranks mean for a request: the parameter of its scope, memory and time (pure)."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import replace

from experiments.environment import package_version
from experiments.spec import DEEPSPEED, RANKS, ZERO, by_deepspeed, ranks_of
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts, Needs, Workload
from levers.errors import BadParameter

FROM = (0, 19, 8)
INSTALL = f"pip install '{DEEPSPEED}>={'.'.join(map(str, FROM))}'"
NUMBERS = re.compile(r"\d+")
"""Earlier ones compute a norm of the gradients that nothing asks for."""

START_S = 6.0
"""Seconds that a group takes longer than one process to start on GPUs: it meets and connects."""

IMPORT_S = 4.0
"""Seconds that DeepSpeed takes to be imported and to build its engine (measured on a CPU)."""


def with_ranks(
    workload: Workload, parameters: Mapping[str, Scalar], ranks: int
) -> Mapping[str, Scalar]:
    """The parameters of a scope with that many ranks; one rank is not named.

    Raises:
        BadParameter: the workload cannot run on several ranks, the number makes no sense, or the
            optimiser's state cannot be divided as it is asked for.
    """
    if ranks < 1:
        raise BadParameter(f"{ranks} ranks", cure="use --ranks 1 or more")
    if by_deepspeed(parameters):
        _check_deepspeed(workload.name, parameters, ranks)
    if ranks == 1:
        return parameters
    if not getattr(workload, "several_ranks", False):
        raise BadParameter(
            f"{workload.name} cannot run on several ranks",
            cure="leave out --ranks, or use a training workload such as slat_flow",
        )
    return {**parameters, RANKS: ranks}


def _check_deepspeed(workload: str, parameters: Mapping[str, Scalar], ranks: int) -> None:
    """Refuse what would measure another update than the one that is asked for, or none."""
    asked = f"{workload}: {ZERO}={DEEPSPEED}"
    if parameters.get("optimizer") != "adamw":
        raise BadParameter(
            f"{asked} divides an optimiser's state, and there is none",
            cure=f"add --set optimizer=adamw, or leave out --set {ZERO}",
        )
    if ranks == 1:
        raise BadParameter(
            f"{asked} on one rank, which has nobody to divide with",
            cure=f"add --ranks 2 or more, or leave out --set {ZERO}",
        )
    cure = f"{INSTALL}; or leave out --set {ZERO}"
    if importlib.util.find_spec(DEEPSPEED) is None:
        raise BadParameter(
            f"{asked} needs the package {DEEPSPEED}, which is not installed", cure=cure
        )
    found = package_version(DEEPSPEED)
    if tuple(map(int, NUMBERS.findall(found)[:3])) < FROM:
        raise BadParameter(
            f"{asked} needs {DEEPSPEED} {'.'.join(map(str, FROM))} or newer, here is {found}: "
            "before, it computes a norm in each step that nothing asks for",
            cure=cure,
        )


def packages_of(parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Distributions that such a run is bound to beside those of every run."""
    return (DEEPSPEED,) if by_deepspeed(parameters) else ()


def needs_of(
    workload: Workload,
    parameters: Mapping[str, Scalar],
    device: DeviceFacts,
    cores: int | None = None,
) -> Needs:
    """What a sample takes on all ranks: device memory is each device's own, the host is shared.

    On a CPU the ranks also share the cores (those of this machine unless they are given).
    """
    needs, ranks = workload.needs(parameters, device), ranks_of(parameters)
    if ranks == 1:
        return needs
    found = cores or len(os.sched_getaffinity(0))
    threads = int(parameters.get("threads") or 1)
    crowd = max(1.0, ranks * threads / found) if device.device_type == "cpu" else 1.0
    start_s = START_S if device.device_type == "cuda" else 0.0
    start_s += IMPORT_S * crowd if by_deepspeed(parameters) else 0.0
    return replace(
        needs,
        host_memory_bytes=needs.host_memory_bytes * ranks,
        seconds_per_sample=needs.seconds_per_sample * crowd + start_s,
        time_limit_s=needs.time_limit_s * crowd,
    )
