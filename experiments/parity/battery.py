"""The parity battery: all checks in order, each in fresh processes, cached by digest.

It stops where a later check makes no sense: a candidate that is broken or too weak for the policy,
a reference or a lever at fault, a check that compared nothing. What then did not run is in the
report all the same, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from experiments.parity import (
    async_,
    determinism,
    graph,
    loss,
    memcheck,
    op,
    rollback,
    smoke,
    stack,
    tokens,
)
from experiments.parity.bench import Ahead, Bench, Execute, ProcessFailed
from experiments.parity.cache import ParityCache
from experiments.parity.kept_outputs import KeptOutputs
from experiments.parity.limits import Limits
from experiments.parity.results import not_run
from experiments.parity_records import CheckResult, ParityReport
from experiments.records import ArmFailure
from experiments.spec import AbSpec
from experiments.tasks import Task
from experiments.workloads.base import Workload
from levers.base import Lever
from levers.policy import ParityClass

Check: TypeAlias = Callable[[Bench], CheckResult]

CHECKS: tuple[tuple[str, Check], ...] = (
    (op.NAME, op.check),
    (determinism.NAME, determinism.check),
    (tokens.NAME, tokens.check),
    (loss.NAME, loss.check),
    (memcheck.NAME, memcheck.check),
    (graph.NAME, graph.check),
    (async_.NAME, async_.check),
    (smoke.NAME, smoke.check),
    (rollback.NAME, rollback.check),
    (stack.NAME, stack.check),
)
"""The order of the design."""

AHEAD: Mapping[str, Callable[[Bench], Sequence[Task]]] = {
    op.NAME: op.ahead,
    memcheck.NAME: memcheck.ahead,
    determinism.NAME: determinism.ahead,
    tokens.NAME: tokens.ahead,
    loss.NAME: loss.ahead,
    graph.NAME: graph.ahead,
    async_.NAME: async_.ahead,
    smoke.NAME: smoke.ahead,
    rollback.NAME: rollback.ahead,
    stack.NAME: stack.ahead,
}
"""The processes that each check will ask for, as far as that is known beforehand; they start in
this order, the sanitizers early since they take longest."""

NO_TRUTH = "no check held the candidate against fp64 truth, so lossless cannot be claimed"


@dataclass(frozen=True, slots=True)
class Battery:
    """All checks of one comparison.

    Attributes:
        bench: the comparison and its processes.
        cache: kept results, or None.
    """

    bench: Bench
    cache: ParityCache | None

    @classmethod
    def of(
        cls,
        spec: AbSpec,
        lever: Lever,
        workload: Workload,
        execute: Execute,
        cache: ParityCache | None = None,
        *,
        limits: Limits | None = None,
        ahead: Ahead | None = None,
        parts: int = 1,
    ) -> Battery:
        """The battery of a comparison.

        Args:
            spec: the comparison.
            lever: the lever under test.
            workload: its workload.
            execute: runs a task in a fresh process.
            cache: kept results, or None.
            limits: how much is compared.
            ahead: told of the processes that the checks will ask for, so that ``execute`` may have
                them at work.
            parts: processes that share the op cases.
        """
        kept = None if cache is None else KeptOutputs(cache)
        device = spec.device_type
        bench = Bench(spec, lever, workload, execute, device, limits, parts, kept, ahead)
        return cls(bench, cache)

    def begin(self) -> None:
        """Have the processes of all checks whose results are not kept at work."""
        self.bench.soon(
            task
            for name, ahead in AHEAD.items()
            if self.cache is None or not self.cache.has(_key(name, self.bench, self.cache))
            for task in ahead(self.bench)
        )

    def run(
        self, on_check: Callable[[CheckResult], None]
    ) -> tuple[ParityReport, tuple[ArmFailure, ...]]:
        """Run the checks and say how far the candidate is from the reference.

        Args:
            on_check: told of each result as it comes.

        Returns:
            The report, and the arms that failed (the reference's failure first); after a failure
            the remaining checks did not run.
        """
        bench, spec = self.bench, self.bench.spec
        results: list[CheckResult] = []
        failures: tuple[ArmFailure, ...] = ()
        stopped = ""
        for name, check in CHECKS:
            if stopped:
                result = not_run(name, stopped)
            else:
                result, failures = _attempt(name, check, bench, self.cache)
                result = _without_truth(result, results, bench.workload)
                stopped = _why_stop(result, failures, spec)
            results.append(result)
            on_check(result)
        return ParityReport(checks=tuple(results), claimed=spec.policy.claims), failures


def _key(name: str, bench: Bench, cache: ParityCache) -> str:
    """What a check's result is kept under; a tool that is no part of the stack goes with it."""
    tool = memcheck.tool_of(bench) if name == memcheck.NAME else ""
    return cache.key(name, bench.spec, " ".join(filter(None, (repr(bench.limits), tool))))


def _attempt(
    name: str, check: Check, bench: Bench, cache: ParityCache | None
) -> tuple[CheckResult, tuple[ArmFailure, ...]]:
    """One check, or the failures of the processes that it needed."""
    try:
        return _checked(name, check, bench, cache), ()
    except ProcessFailed as error:
        return not_run(name, f"a process failed: {error}"), error.failures


def _checked(name: str, check: Check, bench: Bench, cache: ParityCache | None) -> CheckResult:
    """One check from the cache, or run and timed, and kept if it passed."""
    key = "" if cache is None else _key(name, bench, cache)
    kept = None if cache is None else cache.get(key)
    if kept is not None:
        return bench.answered.settled(kept)
    start = time.monotonic()
    result = bench.answered.made(lambda: check(bench))
    result = result.model_copy(update={"seconds": time.monotonic() - start})
    trouble = "" if cache is None else cache.put(key, result)
    if trouble:
        result = result.model_copy(update={"detail": f"{result.detail}; {trouble}".lstrip("; ")})
    return result


def _why_stop(result: CheckResult, failures: tuple[ArmFailure, ...], spec: AbSpec) -> str:
    """Why nothing after this check makes sense; empty where it goes on."""
    if failures:
        return f"not reached: {result.name} ended with a failed process"
    if result.status in ("failed", "empty", "reference-fault", "lever-defective"):
        return f"not reached: {result.name} is {result.status}"
    if not result.strongest.satisfies(spec.policy.demanded):
        return (
            f"not reached: {result.name} leaves {result.strongest.value} where "
            f"{spec.policy.demanded.value} is demanded"
        )
    return ""


def _without_truth(
    result: CheckResult, earlier: list[CheckResult], workload: Workload
) -> CheckResult:
    """Outputs that differ, and no fp64 truth anywhere: the run may not be called lossless."""
    if result.name != determinism.NAME or result.status != "passed":
        return result
    truth = loss.NAME in workload.checks or any(
        one.name == op.NAME and one.status == "passed" for one in earlier
    )
    if truth or result.strongest is ParityClass.BYTE_EXACT:
        return result
    detail = f"{result.detail}; {NO_TRUTH}"
    return result.model_copy(update={"strongest": ParityClass.TOLERATED, "detail": detail})
