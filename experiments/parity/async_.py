"""Check 7, ``async``: several requests in flight give what each gives alone.

The op cases are run one by one and then from several threads at once (each on a stream of its own
where CUDA is), in a shuffled order: scratch memory or state that two calls share shows as a
different bit. Cases that differ from themselves even alone prove nothing and are left out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.parity import op
from experiments.parity.bench import Bench
from experiments.parity.results import failed, not_run, reference_fault
from experiments.parity_records import CheckResult
from experiments.tasks import Task
from levers.base import OpCase

if TYPE_CHECKING:
    from torch import Tensor

    from experiments.workloads.base import Session

NAME = "async"
IN_FLIGHT = 4
"""Requests at a time; threads of one process, as a server holds them."""

ROUNDS = 3
"""Times that each case is asked for at least."""
GPU_CALLS = 325
"""Calls in flight on a GPU at least, as many as the published battery has."""


def check(bench: Bench) -> CheckResult:
    """Run the cases alone and together in a measured process.

    Raises:
        ProcessFailed: the process failed.
    """
    if NAME not in bench.workload.checks:
        return not_run(NAME, f"the workload {bench.spec.workload} serves no requests")
    return bench.probe("async", op.arguments(bench))


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for."""
    serves = NAME in bench.workload.checks
    return (bench.probe_task("async", op.arguments(bench)),) if serves else ()


def probe(task: Task, session: Session | None) -> CheckResult:  # noqa: ARG001 - the probes' shape
    """Compare each case's bits in flight with its bits alone, inside the measured process."""
    cases = op.cases_of(task)
    if not cases:
        return not_run(NAME, op.NO_CASES)
    if task.arguments.get("reference_only"):
        cases = tuple(_reference_only(case) for case in cases)
    cuda = task.device.startswith("cuda")
    return in_flight(cases, task.seed, cuda=cuda, least=GPU_CALLS if cuda else 0)


def _reference_only(case: OpCase) -> OpCase:
    return replace(case, candidate=case.reference)


def in_flight(cases: Sequence[OpCase], seed: int, *, cuda: bool, least: int = 0) -> CheckResult:
    """Run the candidates together; where one differs, see whether the reference does so, too.

    Args:
        cases: of the lever.
        seed: of the inputs and of the order of the calls.
        cuda: whether each call has a stream of its own.
        least: calls at least; the cases are asked for in further whole rounds.
    """
    steady, rounds, wrong = _differing(cases, seed, lambda case: case.candidate, least, cuda=cuda)
    if not steady:
        return not_run(NAME, "no case repeats itself even alone: bits in flight prove nothing")
    total = len(steady) * rounds
    left_out = len(cases) - len(steady)
    detail = f"{len(steady)} cases, {rounds} rounds, {IN_FLIGHT} in flight"
    detail += f"; {left_out} that differ from themselves alone left out" if left_out else ""
    if not wrong:
        return CheckResult(name=NAME, status="passed", passed=total, total=total, detail=detail)
    counts = (total - len(wrong), total)
    what = f"{len(wrong)} of {total} calls gave other bits than alone"
    _, _, also = _differing(steady, seed, lambda case: case.reference, least, cuda=cuda)
    if also:
        return reference_fault(NAME, "failed", f"reference: {what}", also[0], counts)
    return failed(NAME, what, wrong[0], counts, detail)


Pick = Callable[[OpCase], Callable[[Any, Any], None]]


def _differing(
    cases: Sequence[OpCase], seed: int, pick: Pick, least: int, *, cuda: bool
) -> tuple[list[OpCase], int, list[str]]:
    """The cases that repeat themselves alone, the rounds of calls, and which differ in flight."""
    import torch

    from experiments.parity import compare

    inputs = {case.name: case.inputs(seed) for case in cases}
    if cuda:
        torch.cuda.synchronize()
    alone = {case.name: _run(case, inputs[case.name], pick, cuda=cuda) for case in cases}
    again = {case.name: _run(case, inputs[case.name], pick, cuda=cuda) for case in cases}
    steady = [
        case for case in cases if all(map(compare.bit_equal, alone[case.name], again[case.name]))
    ]
    rounds = max(ROUNDS, math.ceil(least / max(1, len(steady))))
    calls = [case for case in steady for _ in range(rounds)]
    random.Random(seed).shuffle(calls)
    with ThreadPoolExecutor(max_workers=IN_FLIGHT) as pool:
        done = list(pool.map(lambda case: _run(case, inputs[case.name], pick, cuda=cuda), calls))
    wrong = [
        case.name
        for case, outputs in zip(calls, done, strict=True)
        if not all(map(compare.bit_equal, alone[case.name], outputs))
    ]
    return steady, rounds, wrong


def _run(case: OpCase, inputs: tuple[Tensor, ...], pick: Pick, *, cuda: bool) -> tuple[Tensor, ...]:
    """One call into poisoned outputs, on a stream of its own where CUDA is."""
    import torch

    from experiments.parity.op_run import poisoned

    if not cuda:
        return poisoned(case, pick(case), inputs)
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        outputs = poisoned(case, pick(case), inputs)
    stream.synchronize()
    return outputs
