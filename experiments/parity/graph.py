"""Check 6, ``graph``: a captured operation gives what the eager one gives.

Each op case is captured once; then, twice, its inputs are overwritten with new ones and its outputs
poisoned before the replay. A kernel that was not recorded leaves the poison, or the old answer. The
kernels of a replay are counted, and must be those of the eager call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from experiments.parity import op
from experiments.parity.bench import Bench
from experiments.parity.results import empty, failed, not_run
from experiments.parity_records import CheckResult
from experiments.tasks import Task
from levers.base import OpCase

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from experiments.workloads.base import Session

NAME = "graph"
REPLAYS = 2
WARM_UPS = 3
"""Calls on a side stream before a capture, as the CUDA graphs documentation of PyTorch asks."""


def check(bench: Bench) -> CheckResult:
    """Capture and replay where CUDA is and the workload captures its work.

    Raises:
        ProcessFailed: the process failed.
    """
    reason = _why_not(bench)
    return not_run(NAME, reason) if reason else bench.probe("graph", op.arguments(bench))


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for."""
    return () if _why_not(bench) else (bench.probe_task("graph", op.arguments(bench)),)


def _why_not(bench: Bench) -> str:
    if bench.device_type != "cuda":
        return f"needs CUDA, this is {bench.device_type}"
    if not bench.captures:
        return "this run captures no CUDA graph"
    return ""


def probe(task: Task, session: Session | None) -> CheckResult:  # noqa: ARG001 - the probes' shape
    """Capture and replay each case, inside the measured process."""
    cases = op.cases_of(task)
    if not cases:
        return not_run(NAME, op.NO_CASES)
    pick = _reference if task.arguments.get("reference_only") else _candidate
    return judge([(case.name, replay_case(case, task.seed, pick(case))) for case in cases])


Call = Callable[["tuple[Tensor, ...]", "tuple[Tensor, ...]"], None]


def _reference(case: OpCase) -> Call:
    return case.reference


def _candidate(case: OpCase) -> Call:
    return case.candidate


def judge(faults: Sequence[tuple[str, str | None]]) -> CheckResult:
    """Sum up the cases; a fault of None means that the case could not be compared."""
    compared = [(name, fault) for name, fault in faults if fault is not None]
    if not compared:
        return empty(NAME, "no case could be compared with its replay")
    wrong = [(name, fault) for name, fault in compared if fault]
    left_out = len(faults) - len(compared)
    detail = f"{REPLAYS} replays a case with new inputs and poisoned outputs"
    detail += f"; {left_out} that differ from themselves when eager left out" if left_out else ""
    counts = (len(compared) - len(wrong), len(compared))
    if wrong:
        return failed(NAME, wrong[0][1], wrong[0][0], counts, detail)
    return CheckResult(name=NAME, status="passed", passed=counts[1], total=counts[1], detail=detail)


def replay_case(case: OpCase, seed: int, call: Call) -> str | None:
    """What is wrong with the replays of one case: nothing (empty), or None if not comparable."""
    import torch

    inputs = case.inputs(seed)
    outputs = case.outputs(inputs)
    side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            call(inputs, outputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call(inputs, outputs)
    except RuntimeError as error:
        return f"it cannot be captured: {str(error).splitlines()[0]}"
    for number in range(1, 1 + REPLAYS):
        fault = _replay(case, call, graph, inputs, outputs, seed + number)
        if fault != "":
            return fault
    return _kernels_fault(graph.replay, lambda: call(inputs, outputs))


def _replay(
    case: OpCase,
    call: Call,
    graph: torch.cuda.CUDAGraph,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    seed: int,
) -> str | None:
    """New inputs in place, poisoned outputs, one replay, and the same inputs eagerly."""
    from experiments.parity import compare
    from experiments.parity.op_run import poisoned

    fresh = case.inputs(seed)
    if [one.shape for one in fresh] != [one.shape for one in inputs]:
        return None
    for static, new in zip(inputs, fresh, strict=True):
        static.copy_(new)
    for output in outputs:
        compare.poison(output, finite=False)
    graph.replay()
    eager, again = poisoned(case, call, fresh), poisoned(case, call, fresh)
    if not all(map(compare.bit_equal, eager, again)):
        return None
    if all(map(compare.bit_equal, eager, outputs)):
        return ""
    return "the replay gives other bits than the eager call"


def _kernels_fault(replay: Callable[[], None], eager: Callable[[], None]) -> str:
    """Compare the kernels of a replay with those of the eager call; empty where they agree.

    Where the profiler sees no kernel of the eager call either, it sees nothing here at all, and
    the poisoned outputs alone speak.
    """
    seen, expected = _kernels(replay), _kernels(eager)
    missing = expected - seen
    if not missing or not expected:
        return ""
    name, count = next(iter(missing.items()))
    return f"the replay lacks {count} launches of {name}"


def _kernels(work: Callable[[], None]) -> Counter[str]:
    """The kernels that ran, by name, without copies and fills."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        work()
        torch.cuda.synchronize()
    names = [
        event.name
        for event in profiler.events() or ()
        if "CUDA" in str(event.device_type) and not event.name.startswith("Mem")
    ]
    return Counter(names)
