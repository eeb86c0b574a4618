"""Whether a set of levers together is as right as no lever at all: the checks that need a set.

Each lever's own operation was held against fp64 truth in its own comparison. Two exact kernels can
fail together, so what is held here is the work as a whole: training curves and the gradient of
every parameter, each arm against truth, and where the workload has no loss its digests and tokens.
Where tokens carry no claim either (random weights), the digests are joined by the op cases of each
lever, which are found again where its own comparison passed them, and no stream may leave the
reference's by more than a near-tie: operations that are right alone say nothing of the set. Models
that are named for the tokens are compared beside that, since they have other shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from experiments.parity import determinism, loss, op, tokens, tokens_far
from experiments.parity.arms import Arms
from experiments.parity.battery import NO_TRUTH
from experiments.parity.bench import Ahead, Bench, Execute, ProcessFailed
from experiments.parity.cache import ParityCache
from experiments.parity.kept_outputs import KeptOutputs
from experiments.parity.results import not_run
from experiments.parity.stack import merge
from experiments.parity_records import CheckResult, ParityReport
from experiments.prepare import Comparison, RunFacts, usual_seed
from experiments.records import ArmFailure
from experiments.spec import LeverSetting
from experiments.tasks import Task, TaskResult
from levers import catalog
from levers.base import OFF
from levers.policy import ParityClass
from levers.source import source_digest

NAME = "stack"
"""The battery's name of this check: the set together."""

EXACT = ParityClass.BYTE_EXACT

CACHED_AS = "whole-stack"
"""Kept apart from the battery's own check 10, which compares one lever inside a set."""


class Remembered:
    """Runs tasks, and answers a task of the plain reference again from memory.

    Every row of a stack is held against the same reference: its processes run once.
    """

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._known: dict[str, TaskResult] = {}

    def __call__(self, task: Task) -> TaskResult:
        """Run the task, unless it is the reference's and was run before."""
        if task.arm != "ref" or task.levers:
            return self._execute(task)
        key = task.content_digest()
        if key not in self._known:
            self._known[key] = self._execute(task)
        return self._known[key]


def held(
    comparison: Comparison,
    levers: Sequence[LeverSetting],
    execute: Execute,
    cache: ParityCache | None,
    on_check: Callable[[CheckResult], None],
    ahead: Ahead | None = None,
) -> tuple[ParityReport, tuple[ArmFailure, ...]]:
    """Hold a set of levers against no lever.

    Args:
        comparison: the set as an A/B (:meth:`experiments.stack.prepare.Stack.comparison`).
        levers: the set, in the order in which the levers are enabled.
        execute: runs a task in a fresh process.
        cache: kept results, or None.
        on_check: told of the result.
        ahead: told of processes that will be asked for, as streams show them.

    Returns:
        The report, and the failures of processes that could not do their work.
    """
    spec = comparison.spec
    bench = _bench(comparison, execute, cache, ahead)
    key = "" if cache is None else cache.key(CACHED_AS, spec, repr(bench.limits))
    result = None if cache is None else cache.get(key)
    failures: tuple[ArmFailure, ...] = ()
    if result is None:
        start = time.monotonic()
        try:
            arms = Arms((), tuple(levers))
            result = bench.answered.made(lambda: _compared(bench, arms, execute, cache))
        except ProcessFailed as error:
            result, failures = not_run(NAME, f"a process failed: {error}"), error.failures
        result = result.model_copy(update={"seconds": time.monotonic() - start})
        if cache is not None:
            cache.put(key, result)
    on_check(result)
    return ParityReport(checks=(result,), claimed=spec.policy.claims), failures


def foreseen(
    rows: Iterable[tuple[Comparison, Sequence[LeverSetting]]], cache: ParityCache | None
) -> tuple[Task, ...]:
    """The processes that :func:`held` will ask for over all rows, each once.

    Args:
        rows: each row as an A/B, with its levers.
        cache: kept results, whose processes are left out, or None.
    """
    tasks: dict[str, Task] = {}
    for comparison, levers in rows:
        spec = comparison.spec
        bench = _bench(comparison, _never, cache)
        key = "" if cache is None else cache.key(CACHED_AS, spec, repr(bench.limits))
        if cache is None or not cache.has(key):
            asked = _tasks(bench, Arms((), tuple(levers)), cache)
            tasks |= {one.content_digest(): one for one in asked if not bench.answered.has(one)}
    return tuple(tasks.values())


def _bench(
    comparison: Comparison,
    execute: Execute,
    cache: ParityCache | None,
    ahead: Ahead | None = None,
) -> Bench:
    return Bench(
        comparison.spec,
        comparison.lever,
        comparison.workload,
        execute,
        comparison.spec.device_type,
        kept=None if cache is None else KeptOutputs(cache),
        ahead=ahead,
    )


def _never(task: Task) -> TaskResult:
    raise AssertionError(f"a {task.kind} was run where it should only be foreseen")


def _tasks(bench: Bench, arms: Arms, cache: ParityCache | None) -> tuple[Task, ...]:
    """The processes of :func:`_compared`."""
    if loss.NAME in bench.workload.checks:
        return loss.tasks(bench, arms)
    digests = determinism.digest_tasks(bench, arms, repeats=1)
    decoded = () if tokens.no_claim(bench) else tokens.tasks(bench, arms)
    if not tokens.no_own_claim(bench):
        return (*digests, *decoded)
    members = (of_member(bench, one, _never) for one in arms.cand)
    operations = (task for one in members if not _kept(one, cache) for task in op.ahead(one))
    far = tokens_far.far_tasks(bench, arms) if _is_exact(bench) else ()
    return (*digests, *decoded, *operations, *far)


def _is_exact(bench: Bench) -> bool:
    """Whether the set claims the reference's own numbers; other weights give other tokens."""
    decodes = tokens.NAME in bench.workload.checks
    return decodes and bench.spec.policy.claims.satisfies(ParityClass.LOSSLESS)


def refusal(report: ParityReport, demanded: ParityClass) -> str:
    """Why a set may not be timed; empty where its parity passed."""
    check = report.checks[0]
    if check.status != "passed":
        return f"parity {check.status}: {check.worst or check.detail}"
    if not report.parity_class.satisfies(demanded):
        return f"parity is {report.parity_class.value} where {demanded.value} is demanded"
    return ""


def _compared(bench: Bench, arms: Arms, execute: Execute, cache: ParityCache | None) -> CheckResult:
    """Curves and gradients where the workload trains; digests and tokens where it does not."""
    name = f"{len(arms.cand)} levers against none"
    if loss.NAME in bench.workload.checks:
        return merge([loss.run(bench, arms, NAME)], name)
    refs, cands = determinism.digests(bench, arms, repeats=1)
    parts = [determinism.judge(refs, cands, demands_bits=bench.demands_bits, name=NAME)]
    has_truth = False
    own = not tokens.no_own_claim(bench)
    if parts[-1].status == "passed" and not own and parts[-1].strongest is not EXACT:
        parts += _operations(bench, arms.cand, execute, cache)
        has_truth = len(parts) > 1
        if parts[-1].status == "passed" and _is_exact(bench):
            parts.append(tokens_far.none_far(bench, arms, NAME))
    if parts[-1].status == "passed" and not tokens.no_claim(bench):
        parts.append(tokens.run(bench, arms, NAME))
        has_truth = True
    return _without_truth(merge(parts, name), has_truth=has_truth)


def _operations(
    bench: Bench, levers: Sequence[LeverSetting], execute: Execute, cache: ParityCache | None
) -> list[CheckResult]:
    """Each lever's op cases against truth, up to the first that did not pass.

    None where a lever states no case and no other fails: there is then no truth for the set.
    """
    found: list[CheckResult] = []
    stated = True
    for one in levers:
        member = of_member(bench, one, execute)
        kept = None if cache is None else cache.get(_op_key(member, cache))
        result = kept or op.check(member)
        if result.status == "not-run":
            stated = False
            continue
        if cache is not None and kept is None:
            cache.put(_op_key(member, cache), result)
        detail = f"{one}: {result.passed}/{result.total} op cases"
        found.append(result.model_copy(update={"detail": detail}))
        if result.status != "passed":
            return found
    return found if stated else []


def of_member(bench: Bench, one: LeverSetting, execute: Execute) -> Bench:
    """One lever of a set as it is in a comparison of its own, with the seed that it has there."""
    spec, workload, lever = bench.spec, bench.workload, catalog.get(one.lever)
    facts = RunFacts(
        spec.device_type, workload.name, spec.parameters, workload.sites(spec.parameters)
    )
    changes = {
        "lever": lever.name,
        "ref": OFF,
        "cand": one.setting,
        "seed": usual_seed(lever.name, OFF, one.setting, workload.name),
        "stack": (),
        "tokens_on": (),
        "policy": lever.policy(facts),
        "levers_source_digest": source_digest(lever),
    }
    alone = spec.model_copy(update=changes)
    return Bench(alone, lever, workload, execute, bench.device_type, bench.limits)


def _op_key(member: Bench, cache: ParityCache) -> str:
    return cache.key(op.NAME, member.spec, repr(member.limits))


def _kept(member: Bench, cache: ParityCache | None) -> bool:
    return cache is not None and cache.has(_op_key(member, cache))


def _without_truth(result: CheckResult, *, has_truth: bool) -> CheckResult:
    """Outputs that differ and were held against no truth may not be called lossless."""
    if result.status != "passed" or has_truth or result.strongest is ParityClass.BYTE_EXACT:
        return result
    detail = f"{result.detail}; {NO_TRUTH}"
    return result.model_copy(update={"strongest": ParityClass.TOLERATED, "detail": detail})
