"""The one extra process that profiles a set of levers: its task, and what came back.

A profile is no sample: it runs after the last one, and how it fails costs a line and no result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from experiments.profiling_records import Group, Profile
from experiments.records import Arm, Sample
from experiments.runner_ports import Runs
from experiments.spec import AbSpec, LeverSetting
from experiments.tasks import Task
from experiments.values import Scalar

FLOP_FACTS: Mapping[str, Group] = {"matmul_flop": "gemm", "attention_flop": "attention"}
"""Facts of a step (profiled or timed) that say its useful work, and the group that does it."""

BYTE_FACTS: Mapping[str, Group] = {
    "row_bytes": "row kernels",
    "optimiser_bytes": "optimiser",
    "weight_bytes": "gemm",
    "kv_bytes": "attention",
}
"""The same of the least bytes that a step must move."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """A profile, or why there is none."""

    profile: Profile | None
    problem: str = ""

    def changes(self) -> dict[str, Any]:
        """What it changes in a record that carries a profile and warnings."""
        if self.profile is None:
            return {"warnings": (f"no profile: {self.problem}",)}
        return {"profile": self.profile}


def profiled(
    spec: AbSpec,
    levers: Sequence[LeverSetting],
    arm: Arm,
    executor: Runs,
    samples: Sequence[Sample] = (),
) -> Profiled:
    """Profile a set of levers in a fresh process.

    Args:
        spec: the comparison whose workload, parameters and seed are used.
        levers: the levers that are on, in order.
        arm: whose environment the process gets.
        executor: starts it.
        samples: timed processes of the same levers; their facts say the work of a step where the
            profiled process cannot. A run that was never timed has none.
    """
    if spec.ranks > 1:
        return Profiled(None, f"it is taken of one process, and this arm has {spec.ranks} ranks")
    task = Task(
        kind="profile",
        arm=arm,
        workload=spec.workload,
        parameters=spec.parameters,
        device=spec.device,
        seed=spec.seed,
        levers=tuple(levers),
    )
    result = executor.run(task).result
    if result.failure is not None or result.profile is None:
        said = f"the process {result.failure or 'left none'} at {result.stage}: {result.message}"
        return Profiled(None, said)
    found = result.profile
    timed = samples[-1].telemetry if samples else {}
    facts = {**timed, **found.facts} if found.unit == "step" else {}
    flop, moved = work_of(facts, FLOP_FACTS), work_of(facts, BYTE_FACTS)
    groups = tuple(
        one.model_copy(update={"flop": flop.get(one.group), "bytes": moved.get(one.group)})
        for one in found.groups
    )
    taken_at = datetime.now(UTC).isoformat()
    return Profiled(found.model_copy(update={"groups": groups, "taken_at": taken_at}))


def work_of(facts: Mapping[str, Scalar], named: Mapping[str, Group]) -> dict[Group, float]:
    """Useful work of one step by group, where the workload says it and there is any."""
    found: dict[Group, float] = {}
    for name, group in named.items():
        value = facts.get(name)
        if isinstance(value, int | float) and value > 0:
            found[group] = float(value)
    return found
