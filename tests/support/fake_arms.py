"""Planted outputs of both arms for the judges of the battery: no process, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.parity_records import CheckResult
from experiments.spec import AbSpec, LeverSetting
from experiments.tasks import Gradient, Measurement, Outputs, Stream, Task, TaskResult
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts, Needs, Target
from levers.base import Facts, OpCase, Settings, Site
from levers.policy import Axis, GatingPolicy, ParityClass

ALL_CHECKS = ("op", "determinism", "tokens", "loss", "memcheck", "graph", "async", "smoke")


@dataclass
class FakeWorkload:
    """Names and checks only."""

    checks: tuple[str, ...] = ALL_CHECKS
    name: str = "fake"
    summary: str = "planted"
    opener: str = ""
    oracles: tuple[str, ...] = ()

    def resolve(self, requested: Mapping[str, str], device: DeviceFacts) -> Mapping[str, Scalar]:
        return dict(requested)

    def axes(self, parameters: Mapping[str, Scalar]) -> tuple[Axis, ...]:
        return (Axis("fake/rate", "1/s", True),)

    def targets(self, parameters: Mapping[str, Scalar], oracle: str | None) -> tuple[Target, ...]:
        return ()

    def sites(self, parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
        return ()

    def needs(self, parameters: Mapping[str, Scalar], device: DeviceFacts) -> Needs:
        return Needs(0, 0, 0, 0.0)

    def oracle_mode(self, parameters: Mapping[str, Scalar], oracle: str) -> str:
        return ""

    def impossible(
        self, parameters: Mapping[str, Scalar], device: DeviceFacts
    ) -> Mapping[str, float]:
        return {}


@dataclass
class FakeLever:
    """A lever that is only named."""

    name: str = "planted"
    summary: str = "planted"
    settings: Settings = field(default_factory=lambda: Settings(("off", "on")))
    env: str = "LEVER_PLANTED"
    touches: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("fake",)
    at_import: bool = False
    cases: Callable[[str], Sequence[OpCase]] = lambda setting: ()

    def policy(self, facts: Facts) -> GatingPolicy:
        return GatingPolicy(primaries=("fake/rate",))

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        return ()

    def environment(self, setting: str) -> Mapping[str, str]:
        return {}

    def enable(self, site: Site, setting: str) -> object:
        return site.launch

    def disable(self, site: Site, undo: object) -> None:
        return None

    def witness(self, site: Site) -> Mapping[str, str]:
        return {}

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        return self.cases(setting)


def spec(
    *,
    claims: ParityClass = ParityClass.LOSSLESS,
    stack: tuple[LeverSetting, ...] = (),
    parameters: Mapping[str, Scalar] | None = None,
    device: str = "cpu",
    **policy: Any,
) -> AbSpec:
    """An A/B of the planted lever."""
    return AbSpec(
        lever="planted",
        ref="off",
        cand="on",
        workload="fake",
        parameters={"concurrency": "1,4"} if parameters is None else parameters,
        device=device,
        seed=5,
        stack=stack,
        policy=GatingPolicy(primaries=("fake/rate",), claims=claims, **policy),
    )


def streams(*tokens: Sequence[int], finish: str = "length") -> tuple[Stream, ...]:
    """Greedy answers, one a prompt."""
    return tuple(
        Stream.model_validate({"prompt": i, "tokens": tuple(t), "finish": finish})
        for i, t in enumerate(tokens)
    )


def gradient(parameter: str, error: float, row: float | None = None, digest: str = "") -> Gradient:
    """One parameter's error."""
    return Gradient(
        parameter=parameter,
        relative_error=error,
        row_error_p99=error if row is None else row,
        norm=1.0,
        digest=digest or f"{parameter} {error}",
    )


PLAIN = Outputs(
    streams=streams(*[[i, 7, 8, 9] for i in range(8)]),
    losses=(2.0, 1.5, 1.25, 1.0),
    gradients=(gradient("w", 0.1), gradient("b", 0.02)),
    digests={"logits": "aa", "state": "bb"},
    nonfinite={"logits": 0},
    inputs_digest="in",
)
"""What both arms leave unless a test plants something else."""

Plant = Callable[[Task], Outputs | None]


@dataclass
class FakeArms:
    """An ``execute`` that answers from planted outputs and remembers what it was asked."""

    plant: Plant = lambda task: None
    checks: Mapping[str, CheckResult] = field(default_factory=dict)
    fails: Callable[[Task], TaskResult | None] = lambda task: None
    plans: Callable[[Task], Mapping[str, str]] = lambda task: {"fake/rate": task.arm}
    asked: list[Task] = field(default_factory=list)

    def __call__(self, task: Task) -> TaskResult:
        self.asked.append(task)
        failed = self.fails(task)
        if failed is not None:
            return failed
        if task.kind == "witness":
            return TaskResult(plans=self.plans(task))
        if task.kind == "outputs":
            return TaskResult(outputs=self.plant(task) or PLAIN)
        if task.kind == "measure":
            measured = Measurement(values={"fake/rate": 2.0}, inputs_digest="in", outputs_count=3)
            return TaskResult(measurement=measured)
        return TaskResult(check=self.checks.get(task.kind, passed(task.kind)))


def passed(name: str, strongest: ParityClass = ParityClass.BYTE_EXACT) -> CheckResult:
    """A check that passed."""
    return CheckResult(name=name, status="passed", passed=3, total=3, strongest=strongest)


def for_arm(arm: str, **changes: Any) -> Plant:
    """Plant other outputs in one arm's processes."""
    return lambda task: PLAIN.model_copy(update=changes) if task.arm == arm else None
