"""Reports that say nothing by themselves, and what is established of them in the same run.

*initcheck* before 2025.4 does not see what a kernel writes with bulk asynchronous copies, as the
kernels of cuBLAS, FlashAttention and CUTLASS do from capability 9.0 on, and calls every later read
of it uninitialised. There :mod:`experiments.parity.fresh_memory` decides. *racecheck* reports some
kernels of cuBLAS, which are nobody's under test: what it reports of PyTorch's own products is set
aside. Both are counted and named.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from experiments.parity.sanitizer_report import Report
from experiments.parity.sanitizer_tool import run_tool, version_of
from levers.known_reports import KnownReport

FOLLOWS_BULK_COPIES = (2025, 4)
BULK_COPIES_FROM = (9, 0)
"""Release of the sanitizer, and capability of the device."""

MOST_FAULTS = 4
"""Outputs that are named."""

RELEASE_NOTES = "Compute Sanitizer release notes, 2025.4"

UNINITIALISED = "Uninitialized __global__ memory read|Host API memory access error"
"""What initcheck reports: a kernel that reads, and a copy of memory by the driver."""

DOUBTFUL = tuple(UNINITIALISED.split("|"))

MEMORY_LIMIT_S = 240.0
"""For the cases on filled memory, which run after the tools."""

MEMORY = "levergate: fresh memory "
"""Begins the line in which the process of :func:`memory_of` says what it found."""

LIBRARY = re.compile(r"\b(?:nvjet_sm\d+|sm\d+_xmma_gemm)_")
"""cuBLAS's kernels: their names go on with the tile, which another product's has otherwise."""


class MemoryAnswer(BaseModel):
    """What a process says of cases that ran on filled memory.

    Attributes:
        cases: how many ran.
        power: whether a planted call that hangs on fresh memory was found.
        faults: the outputs that hang on it, in words.
        capability: of the device; empty on a CPU.
    """

    cases: int
    power: bool
    faults: tuple[str, ...]
    capability: tuple[int, ...]


def settled(
    sanitizer: str, path: Path, variables: Mapping[str, str], reports: Mapping[str, Report]
) -> dict[str, Report]:
    """The reports, with what a second look at doubtful ones has established.

    Args:
        sanitizer: its path.
        path: the task whose cases ran.
        variables: of the sanitizers' processes.
        reports: what each tool said.
    """
    after = dict(reports)
    if _doubtful_reads(after.get("initcheck")):
        after["initcheck"] = _after_filling(sanitizer, path, after["initcheck"])
    if "racecheck" in after and any(map(LIBRARY.search, after["racecheck"].kernels)):
        plain = run_tool(sanitizer, "racecheck", ["--products"], variables)
        after["racecheck"] = after["racecheck"].knowing(_of_plain(plain))
    return after


def _doubtful_reads(report: Report | None) -> bool:
    return report is not None and any(one.startswith(DOUBTFUL) for one in report.real)


def _after_filling(sanitizer: str, path: Path, report: Report) -> Report:
    version = version_of(sanitizer)
    if version is None or version >= FOLLOWS_BULK_COPIES:
        return report
    try:
        found = memory_of(path)
    except subprocess.TimeoutExpired:
        why = f"the cases on filled memory were not through after {MEMORY_LIMIT_S:.0f} s"
        if all(one.startswith(DOUBTFUL) for one in report.real):
            return report.without_answer(f"reported reads that say nothing alone, and {why}")
        return report.knowing([], why)
    if found is None:
        return report.knowing([], "the cases on filled memory gave no answer")
    if found.capability < BULK_COPIES_FROM:
        return report
    if found.faults or not found.power:
        why = "; ".join(found.faults[:MOST_FAULTS]) or "a planted fault was not found"
        return report.knowing([], f"on filled memory: {why}")
    known = KnownReport(
        tool="initcheck",
        kernel="",
        headline=UNINITIALISED,
        reason=f"{version[0]}.{version[1]} does not see bulk asynchronous copies write, and no "
        f"output of {found.cases} op cases changes with what fresh memory holds",
        source=RELEASE_NOTES,
        instead=True,
    )
    return report.knowing([known])


def memory_of(path: Path) -> MemoryAnswer | None:
    """What a process found that ran the cases on filled memory; None where it failed.

    Raises:
        TimeoutExpired: it was not through in its time.
    """
    words = [sys.executable, "-m", "experiments.parity.memcheck_cases", "--memory", str(path)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=MEMORY_LIMIT_S, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(MEMORY)]
    return MemoryAnswer.model_validate_json(lines[-1].removeprefix(MEMORY)) if lines else None


def _of_plain(plain: Report) -> list[KnownReport]:
    """What is known of racecheck's reports after a run without the candidate."""
    families = {found.group() for kernel in plain.kernels if (found := LIBRARY.search(kernel))}
    return [
        KnownReport(
            tool="racecheck",
            kernel=name,
            reason="it reports the same of PyTorch's own products here",
            source="a run without the candidate",
        )
        for name in sorted(families)
    ]
