"""What the processes of a comparison take of the device, by the workload's own estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.plan import Plan, Run
from experiments.ranks.needs import needs_of
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts, Workload


@dataclass(frozen=True, slots=True)
class SampleTimes:
    """Seconds of one process of each kind.

    Attributes:
        arm_s: of an arm.
        oracle_s: of the oracle's first process, which may have to compile, and of each later one;
            None where an oracle takes as long as an arm.
    """

    arm_s: float
    oracle_s: tuple[float, float] | None = None

    def oracles(self, count: int) -> float:
        """Seconds of that many processes of the oracle."""
        first_s, later_s = self.oracle_s or (self.arm_s, self.arm_s)
        return first_s + (count - 1) * later_s if count else 0.0

    def of(self, runs: Sequence[Run]) -> float:
        """Seconds of these runs."""
        oracles = sum(run.arm == "oracle" for run in runs)
        return (len(runs) - oracles) * self.arm_s + self.oracles(oracles)


def times_of(
    workload: Workload, parameters: Mapping[str, Scalar], device: DeviceFacts, oracle: str | None
) -> SampleTimes:
    """The times of a comparison; a workload may say what an oracle takes (``oracle_seconds``)."""
    arm_s = needs_of(workload, parameters, device).seconds_per_sample
    said = getattr(workload, "oracle_seconds", None)
    if not oracle or said is None:
        return SampleTimes(arm_s)
    first_s, later_s = said(parameters, device, oracle)
    return SampleTimes(arm_s, (first_s, later_s))


def estimate_s(plan: Plan, times: SampleTimes, server_s: float, budget_s: float | None) -> float:
    """The device time that a run takes at most: its whole plan, or its budget."""
    blocks = len({step.block for step in plan.steps})
    whole = times.of(plan.runs) + blocks * server_s
    return whole if budget_s is None else min(whole, budget_s)


def first_look_s(plan: Plan, looks: Sequence[int], times: SampleTimes) -> float:
    """The device time until the first look: its pairs, and the oracle pairs of their blocks."""
    return times.of([run for step in plan.steps if step.pair < looks[0] for run in step.runs])
