"""What a profile holds: the wall-clock of a step in named groups; torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from experiments.values import FrozenMap, Scalar, Value

Group = Literal[
    "gemm",
    "attention",
    "row kernels",
    "reductions",
    "optimiser",
    "copies",
    "communication",
    "other",
    "host gap",
]
"""Where the time of a step can go; ``row kernels`` are element-wise and row-wise ones."""

GROUPS: tuple[Group, ...] = (
    "gemm",
    "attention",
    "row kernels",
    "reductions",
    "optimiser",
    "copies",
    "communication",
    "other",
    "host gap",
)


class KernelTime(Value):
    """One kernel (on a CPU: one operator) by name: its group, launches and time in a step."""

    name: str
    group: Group
    launches: float
    ms: float


class GroupTime(Value):
    """One group: its time in a step, and the work behind it where that is known.

    ``flop`` and ``bytes`` are those of one step; None where nobody can say them.
    """

    group: Group
    ms: float
    launches: float = 0.0
    flop: float | None = None
    bytes: float | None = None


class Gap(Value):
    """Wall-clock of a step, under the profiler, in which nothing ran between two named kernels."""

    after: str
    before: str
    times: float
    ms: float


ENQUEUE_MS = "enqueue_ms"
"""Fact of a profile on CUDA: the time in which the host gives an idle device one step."""


class Profile(Value):
    """A profile of one set of levers, from one process in which nothing was timed for a table.

    Attributes:
        steps: how many steps (or passes of untimed work) were profiled.
        step_ms: mean wall-clock of one of them, of which the groups are shares: without the
            profiler on CUDA, where it slows the host and not the kernels; under it on a CPU, where
            the operators' own times bear its cost.
        plain_step_ms, profiled_step_ms: without the profiler and under it, in the same process.
        level: ``kernels`` on CUDA, ``operators`` on a CPU.
        unit: what one step is: ``step``, or ``pass`` over the workload's axes.
        groups: in the order of :data:`GROUPS`; their times add up to ``step_ms`` and what ran at
            the same time on several streams (``overlap_ms``).
        kernels: the longest ones, at most a few dozen; ``others`` says how many were left out.
        gaps: the longest waits of the device between two kernels, by the two, at most a dozen.
        idle_ms: all such waits of a step; None on a CPU and in records of earlier versions.
        ceilings: measured rates in this process, in FLOP/s and B/s.
    """

    device_kind: str
    levers: tuple[str, ...]
    steps: int
    step_ms: float
    plain_step_ms: float
    profiled_step_ms: float
    level: Literal["kernels", "operators"]
    unit: Literal["step", "pass"]
    groups: tuple[GroupTime, ...]
    overlap_ms: float = 0.0
    kernels: tuple[KernelTime, ...] = ()
    others: int = 0
    gaps: tuple[Gap, ...] = ()
    idle_ms: float | None = None
    ceilings: FrozenMap[float] = Field(default_factory=dict)
    facts: FrozenMap[Scalar] = Field(default_factory=dict)
    taken_at: str = ""
