"""Check 5, ``memcheck``: compute-sanitizer over the candidate's op cases, in processes of its own.

PyTorch's caching allocator is off, so that an access beyond a tensor is an access beyond an
allocation, and ``expandable_segments`` is taken out of its configuration, which would report writes
that are right. A planted stray write must be found: a sanitizer that cannot see it has no power
here. The tools run side by side; what they leave running (a sanitizer's launcher, a compiler's
helper) is ended after the last of them, and is no lever's. Of many cases a few are taken
(:mod:`experiments.parity.memcheck_choice`), and the check says how many.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import descendants
from experiments.parity import op
from experiments.parity.bench import Bench
from experiments.parity.memcheck_choice import chosen
from experiments.parity.results import empty, failed, not_run
from experiments.parity.sanitizer_report import FOUND_ERRORS, MOST_SHOWN, Report
from experiments.parity_records import CheckResult
from experiments.tasks import Task
from levers.base import KnownReport

if TYPE_CHECKING:
    from experiments.workloads.base import Session

NAME = "memcheck"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZER = "compute-sanitizer"
USUAL_FOLDER = "/usr/local/cuda/bin"

TOOL_LIMIT_S = 150.0
"""A tool that is not through after this long is said to be unfinished, and is not counted."""

SET_ASIDE = "reports_set_aside"

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


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


def _why_not(bench: Bench) -> str:
    if bench.device_type != "cuda":
        return f"needs CUDA, this is {bench.device_type}"
    if find_sanitizer() is None:
        return f"needs {SANITIZER}, which is not on PATH nor in {USUAL_FOLDER}"
    return ""


def find_sanitizer() -> str | None:
    """The sanitizer's path, or None."""
    return shutil.which(SANITIZER) or shutil.which(SANITIZER, path=USUAL_FOLDER)


def probe(task: Task, session: Session | None) -> CheckResult:  # noqa: ARG001 - the probes' shape
    """Run each tool over the op cases; called in a measured process, which starts the tools'."""
    from experiments.parity.op_case import reference_alone

    if task.arguments.get("reference_only"):
        for case in op.cases_of(task):
            reference_alone(case, task.seed)
        return not_run(NAME, "the reference alone")
    sanitizer = find_sanitizer()
    if sanitizer is None:
        return not_run(NAME, f"{SANITIZER} has gone")
    cases = op.cases_of(task)
    if not cases:
        return not_run(NAME, op.NO_CASES)
    variables, stripped = sanitizer_environment(os.environ)
    known = op.known_reports_of(task)
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
        descendants.sweep(spared=before)
    taken = len(chosen(cases)), len(cases)
    return judge(control, dict(zip(TOOLS, reports, strict=True)), stripped, taken)


def sanitizer_environment(variables: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables of a sanitizer's process, and which were changed for it."""
    kept = {**variables, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    stripped = []
    for name in ALLOCATOR_VARIABLES:
        options = [part for part in kept.get(name, "").split(",") if part]
        left = [part for part in options if not part.strip().startswith("expandable_segments")]
        if left != options:
            stripped.append(name)
            kept[name] = ",".join(left)
        if name in kept and not kept[name]:
            del kept[name]
    return kept, tuple(stripped)


def run_tool(
    sanitizer: str,
    tool: str,
    arguments: list[str],
    variables: Mapping[str, str],
    known: Sequence[KnownReport] = (),
) -> Report:
    """One tool over one process of the cases (or of the planted stray write)."""
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND_ERRORS)]
    command += ["--print-limit", str(MOST_SHOWN), sys.executable]
    command += ["-m", "experiments.parity.memcheck_cases", *arguments]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, env=dict(variables), stdout=said, stderr=said, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=TOOL_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
        return Report(code, text, [one for one in known if one.tool == tool])


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
    if not control.errors:
        if control.code == 0:
            return empty(NAME, "no power: the sanitizer did not see a planted stray write")
        return not_run(
            NAME, f"the sanitizer cannot run here: {control.why_unfinished(TOOL_LIMIT_S)}"
        )
    answered = {tool: one for tool, one in reports.items() if one.errors is not None}
    silent = [
        f"{t} {one.why_unfinished(TOOL_LIMIT_S)}"
        for t, one in reports.items()
        if one.errors is None
    ]
    detail = "; ".join(
        [
            f"{', '.join(answered) or 'no tool'} over {taken[0]} of {taken[1]} op cases, "
            "caching allocator off",
            *(f"expandable_segments taken out of {name}" for name in stripped),
            *_set_aside(answered),
            *silent,
        ]
    )
    if not answered:
        return not_run(NAME, detail)
    bad = {tool: one for tool, one in answered.items() if one.errors}
    counts = (len(answered) - len(bad), len(answered))
    if bad:
        tool, report = next(iter(bad.items()))
        return failed(NAME, f"{report.errors} errors: {report.first_error}", tool, counts, detail)
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
        },
    )


def _set_aside(reports: Mapping[str, Report]) -> Iterator[str]:
    for tool, report in reports.items():
        for one, count in report.set_aside.items():
            if count:
                yield (
                    f"{count} reports of {tool} on {one.kernel} set aside: {one.reason} "
                    f"({one.source})"
                )
