"""Check 10, ``stack``: the lever together with the whole set that is default-ON in this scope.

Two levers that are exact alone can be wrong together, so everything that the workload can compare
is compared again, with the set in both arms.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.parity import determinism, loss, tokens
from experiments.parity.bench import Bench
from experiments.parity.results import not_run
from experiments.parity_records import CheckResult
from experiments.tasks import Task
from experiments.values import digest_of
from levers.policy import ParityClass

NAME = "stack"


def check(bench: Bench) -> CheckResult:
    """Compare digests, tokens and losses with the default-ON set in both arms.

    Raises:
        ProcessFailed: a process failed.
    """
    if not bench.spec.stack:
        return not_run(NAME, "no other lever is default-ON in this scope")
    arms = bench.stacked
    refs, cands = determinism.digests(bench, arms, repeats=1)
    parts = [determinism.judge(refs, cands, demands_bits=bench.demands_bits, name=NAME)]
    if parts[-1].status == "passed" and not tokens.no_claim(bench):
        parts.append(tokens.run(bench, arms, NAME))
    if parts[-1].status == "passed" and loss.NAME in bench.workload.checks:
        parts.append(loss.run(bench, arms, NAME))
    return merge(parts, arms.name)


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for."""
    if not bench.spec.stack:
        return ()
    arms = bench.stacked
    return (
        *determinism.digest_tasks(bench, arms, repeats=1),
        *(() if tokens.no_claim(bench) else tokens.tasks(bench, arms)),
        *(loss.tasks(bench, arms) if loss.NAME in bench.workload.checks else ()),
    )


def merge(parts: Sequence[CheckResult], names: str) -> CheckResult:
    """The comparisons as one check that names the set; one that did not pass speaks for all."""
    last = parts[-1]
    detail = "; ".join(filter(None, (f"with {names}", *(part.detail for part in parts))))
    if last.status != "passed":
        return last.model_copy(update={"detail": detail})
    strongest = ParityClass.BYTE_EXACT
    for part in parts:
        strongest = strongest.weaker(part.strongest)
    return CheckResult(
        name=NAME,
        status="passed",
        passed=sum(part.passed for part in parts),
        total=sum(part.total for part in parts),
        worst=last.worst,
        where=last.where,
        detail=detail,
        strongest=strongest,
        figures={name: value for part in parts for name, value in part.figures.items()},
        digest=digest_of(" ".join(part.digest for part in parts)),
        curves=next((part.curves for part in parts if part.curves), {}),
    )
