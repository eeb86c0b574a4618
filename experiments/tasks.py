"""What the parent asks of a measured process, and what comes back; JSON on both ways, no torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from experiments.parity_records import CaseResult, CheckResult
from experiments.profiling_records import Profile
from experiments.records import Arm, FailureKind
from experiments.spec import LeverSetting, ranks_of
from experiments.values import FrozenMap, Scalar, Value

TaskKind = Literal[
    "measure", "witness", "outputs", "op", "memcheck", "graph", "async", "screen", "profile"
]


GROUP_KINDS = ("measure", "witness")
"""Work that all ranks of an arm do together; every other kind is one process's."""

LIMIT_S = "limit_s"
"""The argument by which a group of ranks knows its time limit, in seconds."""

SHARE = "share"
"""The argument of a process that runs a share of the op cases: ``1/3`` is the second of three."""


class Task(Value):
    """One piece of work for one fresh process.

    Attributes:
        levers: the levers that are on, the tested one last; empty means that no lever is imported.
        subject: the lever under test, so that its op cases can be found even when it is off.
        implementation: ``engine`` or ``oracle:<name>``.
        arguments: what the kind of task needs beside (number of prompts, prefixes, poison seed).
    """

    kind: TaskKind
    arm: Arm
    workload: str
    parameters: FrozenMap[Scalar]
    device: str
    seed: int
    levers: tuple[LeverSetting, ...] = ()
    subject: LeverSetting | None = None
    implementation: str = "engine"
    pair: int = 0
    position: Literal[0, 1] = 0
    arguments: FrozenMap[Any] = Field(default_factory=dict)

    @property
    def own_device(self) -> str:
        """The device as this task's process sees it: ``cuda:1`` is the only GPU there, ``cuda:0``.

        Of several GPUs, one for each rank, it is the first.
        """
        return "cuda:0" if self.device.startswith("cuda") else self.device

    @property
    def ranks(self) -> int:
        """How many processes do this task together, each on its own shard."""
        return ranks_of(self.parameters) if self.kind in GROUP_KINDS else 1


class Measurement(Value):
    """What one timed process measured (see :class:`experiments.records.Sample`)."""

    values: FrozenMap[float]
    raw: FrozenMap[tuple[float, ...]] = Field(default_factory=dict)
    inputs_digest: str
    outputs_count: int
    facts: FrozenMap[Scalar] = Field(default_factory=dict)


class Stream(Value):
    """One greedy answer: the prompt's index, its token ids, and why it ended."""

    prompt: int
    tokens: tuple[int, ...]
    finish: Literal["stop", "length"]


class Gradient(Value):
    """One parameter's gradient error against fp64: relative L2, and 99th-percentile row."""

    parameter: str
    relative_error: float
    row_error_p99: float
    norm: float
    digest: str


class Outputs(Value):
    """What an untimed parity pass produced.

    ``digests`` name output tensors by SHA-256 of their bytes; ``nonfinite`` counts non-finite
    values by output name; ``gaps`` holds the answers to a teacher-forcing request, one per prefix:
    the logit gap in nat between the reference's choice and the candidate's. ``unsteady`` names the
    digests that were not the same in all repeats inside this process. ``step_inputs`` are digests
    of what each step of a training curve worked on; ``inputs_digest`` is of all of them.
    """

    streams: tuple[Stream, ...] = ()
    losses: tuple[float, ...] = ()
    gradients: tuple[Gradient, ...] = ()
    digests: FrozenMap[str] = Field(default_factory=dict)
    nonfinite: FrozenMap[int] = Field(default_factory=dict)
    gaps: tuple[float, ...] = ()
    inputs_digest: str = ""
    step_inputs: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()


class Visit(Value):
    """One short measure of one setting inside a screening process, or how it failed.

    ``plans`` are the plans that ran, per axis, read at the setting's first visit.
    """

    setting: str
    round: int
    values: FrozenMap[float] = Field(default_factory=dict)
    plans: FrozenMap[str] = Field(default_factory=dict)
    warmup_s: float = 0.0
    measured_s: float = 0.0
    compilations: int = 0
    failure: FailureKind | None = None
    message: str = ""


class TaskResult(Value):
    """What a measured process left behind; ``failure`` excludes every figure.

    ``cases`` are those that a process of several took of the op check.
    ``disagreements`` say on what the ranks of one arm differ that must be equal on all of them.
    """

    failure: FailureKind | None = None
    stage: str = ""
    message: str = ""
    traceback: str = ""
    measurement: Measurement | None = None
    outputs: Outputs | None = None
    check: CheckResult | None = None
    cases: tuple[CaseResult, ...] = ()
    profile: Profile | None = None
    plans: FrozenMap[str] = Field(default_factory=dict)
    launches: FrozenMap[int] = Field(default_factory=dict)
    visits: tuple[Visit, ...] = ()
    left_changed: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    start_s: float = 0.0
    warmup_s: float = 0.0
    measured_s: float = 0.0
    compilations: int = 0
    facts: FrozenMap[Scalar] = Field(default_factory=dict)
