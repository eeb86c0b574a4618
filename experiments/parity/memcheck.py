"""Check 5, ``memcheck``: compute-sanitizer over the candidate's op cases, in processes of its own.

PyTorch's caching allocator is off, so that an access beyond a tensor is an access beyond an
allocation, and ``expandable_segments`` is taken out of its configuration, which would report writes
that are right. A planted stray write must be found: a sanitizer that cannot see it has no power
here. The tools run side by side; what they leave running (a sanitizer's launcher, a compiler's
helper) is ended after the last of them, and is no lever's. Doubtful reports get a second look
(:mod:`experiments.parity.sanitizer_doubts`). Of many cases a few are taken
(:mod:`experiments.parity.memcheck_choice`), and the check says how many.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import descendants
from experiments.parity import op, sanitizer_doubts, sanitizer_tool
from experiments.parity.bench import Bench
from experiments.parity.memcheck_choice import chosen
from experiments.parity.results import empty, failed, not_run
from experiments.parity.sanitizer_report import FOUND_ERRORS, Report
from experiments.parity.sanitizer_tool import SANITIZER, USUAL_FOLDER, run_tool
from experiments.parity_records import CheckResult
from experiments.tasks import Task

if TYPE_CHECKING:
    from experiments.workloads.base import Session

NAME = "memcheck"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SET_ASIDE = "reports_set_aside"

STRAY_WRITE = "Invalid __global__ write"
"""What the planted fault is called; another finding (of a failing driver) is no sign of power."""

MOST_KERNELS = 12
"""Kernels that a failed check names."""


def check(bench: Bench) -> CheckResult:
    """Run the sanitizer's tools where CUDA and the sanitizer are.

    Raises:
        ProcessFailed: the process failed.
    """
    reason = _why_not(bench)
    return not_run(NAME, reason) if reason else bench.probe("memcheck", op.arguments(bench))


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for."""
    return () if _why_not(bench) else (bench.probe_task("memcheck", op.arguments(bench)),)


def tool_of(bench: Bench) -> str:
    """The sanitizer that :func:`check` would run, with its version; empty where there is none.

    A result is bound to it: another version sees other faults.
    """
    sanitizer = None if _why_not(bench) else sanitizer_tool.find_sanitizer()
    return f"{SANITIZER} {sanitizer_tool.version_text(sanitizer)}" if sanitizer else ""


def _why_not(bench: Bench) -> str:
    if bench.device_type != "cuda":
        return f"needs CUDA, this is {bench.device_type}"
    if sanitizer_tool.find_sanitizer() is None:
        return f"needs {SANITIZER}, which is not on PATH nor in {USUAL_FOLDER}"
    return ""


def probe(task: Task, session: Session | None) -> CheckResult:  # noqa: ARG001 - the probes' shape
    """Run each tool over the op cases; called in a measured process, which starts the tools'."""
    from experiments.parity.op_case import reference_alone

    known = op.known_reports_of(task)
    if task.arguments.get("reference_only"):
        for case in op.cases_of(task):
            reference_alone(case, task.seed)
        return not_run(NAME, "the reference alone")
    sanitizer = sanitizer_tool.find_sanitizer()
    if sanitizer is None:
        return not_run(NAME, f"{SANITIZER} has gone")
    cases = op.cases_of(task)
    if not cases:
        return not_run(NAME, op.NO_CASES)
    variables, stripped = sanitizer_tool.sanitizer_environment(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.json"
        path.write_text(task.model_dump_json())
        descendants.adopt_orphans()
        before = descendants.children()
        asked = [("memcheck", ["--control"]), *((tool, [str(path)]) for tool in TOOLS)]
        with ThreadPoolExecutor(len(asked)) as together:
            control, *reports = together.map(
                lambda one: run_tool(sanitizer, one[0], one[1], variables, known), asked
            )
        found = dict(zip(TOOLS, reports, strict=True))
        found = sanitizer_doubts.settled(sanitizer, path, variables, found)
        descendants.sweep(spared=before)
    taken = len(chosen(cases)), len(cases)
    return judge(control, found, stripped, taken)


def judge(
    control: Report,
    reports: Mapping[str, Report],
    stripped: tuple[str, ...],
    taken: tuple[int, int],
) -> CheckResult:
    """No tool may report an error; tools that gave no answer are named and not counted.

    Args:
        control: the planted stray write under memcheck.
        reports: what each tool said of the op cases.
        stripped: variables that were changed for the sanitizer.
        taken: how many op cases ran under each tool, and how many there are.
    """
    if not any(one.startswith(STRAY_WRITE) for one in control.real):
        if control.code == 0 or (control.finished and control.code == FOUND_ERRORS):
            return empty(NAME, "no power: the sanitizer did not see a planted stray write")
        why = control.why_unfinished(sanitizer_tool.TOOL_LIMIT_S)
        return not_run(NAME, f"the sanitizer cannot run here: {why}")
    answered = {tool: one for tool, one in reports.items() if one.errors is not None}
    silent = [
        f"{t} {one.why_unfinished(sanitizer_tool.TOOL_LIMIT_S)}"
        for t, one in reports.items()
        if one.errors is None
    ]
    detail = "; ".join(
        [
            f"{', '.join(answered) or 'no tool'} over {taken[0]} of {taken[1]} op cases, "
            "caching allocator off",
            *(f"expandable_segments taken out of {name}" for name in stripped),
            *_set_aside(reports),
            *(f"{tool}: {one.note}" for tool, one in reports.items() if one.note),
            *silent,
        ]
    )
    if not answered:
        return not_run(NAME, detail)
    seconds = {f"seconds_{tool}": round(one.seconds, 1) for tool, one in reports.items()}
    bad = {tool: one for tool, one in answered.items() if one.errors}
    counts = (len(answered) - len(bad), len(answered))
    if bad:
        tool, report = next(iter(bad.items()))
        named = "; ".join(
            f"{tool} counts {number} in {kernel or 'a kernel that it does not name'}"
            for tool, one in bad.items()
            for kernel, number in one.kernels.most_common(MOST_KERNELS)
        )
        words = f"{report.errors} errors: {report.first_error}"
        result = failed(NAME, words, tool, counts, "; ".join(filter(None, (detail, named))))
        return result.model_copy(update={"figures": seconds})
    return CheckResult(
        name=NAME,
        status="passed",
        passed=len(answered),
        total=len(answered),
        worst="0 errors",
        detail=detail,
        figures={
            "planted_errors_found": control.errors,
            "op_cases_taken": taken[0],
            "op_cases": taken[1],
            SET_ASIDE: sum(sum(one.set_aside.values()) for one in answered.values()),
            **seconds,
        },
    )


def _set_aside(reports: Mapping[str, Report]) -> Iterator[str]:
    for tool, report in reports.items():
        for one, count in report.set_aside.items():
            if count:
                yield (
                    f"{count} reports of {tool} {one.what} set aside: {one.reason} ({one.source})"
                )
