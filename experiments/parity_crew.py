"""The crew of a comparison's parity processes: how many at once, and of what size."""

from __future__ import annotations

from collections.abc import Callable

from experiments import preflight
from experiments.crew import Crew
from experiments.environment import Device
from experiments.executor import Executor
from experiments.frozen import FrozenEnvironment
from experiments.home import Home
from experiments.prepare import Comparison
from experiments.ranks.needs import needs_of
from experiments.tasks import Task

ON_A_GPU = 5
"""Parity processes at once on a GPU, where most of their time is the host's: imports, compilation,
launches."""

LIGHT_SHARE = 1 / 20
"""Of the device's memory, taken by a process that holds no whole workload: the cases of one
operation, or a training curve at reduced depth. One that takes more and fails is run again alone.
"""

WHOLE_WORK = ("digests", "tokens", "gaps", "truth")
"""What is asked of a session that runs the workload at its full size."""

IN_DOUBLE = 4
"""Times the bytes of bf16, for what is decoded in fp64."""


def crew_of(
    comparison: Comparison,
    frozen: FrozenEnvironment,
    home: Home,
    *,
    time_limit_s: float,
    jobs: int | None = None,
) -> Callable[[], Crew] | None:
    """What makes the crew; None where the processes run one by one.

    Args:
        comparison: what is compared.
        frozen: what all its processes share.
        home: where task and result files lie.
        time_limit_s: after this time a process counts as hung.
        jobs: processes at once; None takes the usual number.
    """
    size = jobs or usual_jobs(comparison.device, comparison.spec.ranks)
    if size == 1:
        return None

    def make() -> Crew:
        hands = [Executor(frozen, home.work, time_limit_s=time_limit_s) for _ in range(size)]
        free = preflight.free_now(home.root, comparison.device).device_bytes
        if free is None:
            return Crew(hands, lambda _: 0.0)
        sizes = sizes_of(free, _whole_bytes(comparison))
        return Crew(hands, sizes, free * preflight.MEMORY_SHARE)

    return make


def _whole_bytes(comparison: Comparison) -> int:
    """What the workload takes of the device at its full size, or with the largest token model."""
    spec, facts = comparison.spec, comparison.device.facts
    every = (spec.parameters, *(one.parameters for one in spec.tokens_on))
    return max(needs_of(comparison.workload, one, facts).device_memory_bytes for one in every)


def usual_jobs(device: Device, ranks: int) -> int:
    """How many parity processes are at work at once where nobody says: one on a CPU.

    Its cores are few and the measured process has one of them; and a group of ranks takes all
    devices.
    """
    return ON_A_GPU if device.is_cuda and ranks == 1 else 1


def sizes_of(free_bytes: int, whole_bytes: int) -> Callable[[Task], float]:
    """What a task takes of the device's memory, in bytes.

    Args:
        free_bytes: what is free before any of them runs.
        whole_bytes: what the workload takes at its full size.
    """
    light = free_bytes * LIGHT_SHARE

    def size_of(task: Task) -> float:
        whole = task.kind in ("measure", "witness") or task.arguments.get("want") in WHOLE_WORK
        times = IN_DOUBLE if task.arguments.get("want") == "truth" else 1
        return max(times * whole_bytes, light) if whole else light

    return size_of
