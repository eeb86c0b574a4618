"""One of compute-sanitizer's tools over one process, and the variables of that process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

from experiments.parity.sanitizer_report import ENOUGH, FINDING, FOUND_ERRORS, MOST_SHOWN, Report
from levers.known_reports import KnownReport

SANITIZER = "compute-sanitizer"
USUAL_FOLDER = "/usr/local/cuda/bin"

TOOL_LIMIT_S = 150.0
"""A tool that is not through after this long is said to be unfinished, and is not counted. Eighteen
cases of the nine training levers' set take 57 s on an H200 under memcheck, 75 s under racecheck,
and more than 240 s under synccheck."""

LOOK_EVERY_S = 2.0
"""How often a tool is looked at: one that has shown findings enough is ended."""

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

VERSION = re.compile(r"\bVersion (\d+)\.(\d+).*")


def find_sanitizer() -> str | None:
    """The sanitizer's path, or None."""
    return shutil.which(SANITIZER) or shutil.which(SANITIZER, path=USUAL_FOLDER)


def version_of(sanitizer: str) -> tuple[int, int] | None:
    """Year and release of the sanitizer, or None where it does not say."""
    found = VERSION.search(version_text(sanitizer))
    return (int(found.group(1)), int(found.group(2))) if found else None


def version_text(sanitizer: str) -> str:
    """The version with its build as the sanitizer says it; empty where it does not."""
    asked = [sanitizer, "--version"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = VERSION.search(said)
    return found.group().strip() if found else ""


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
    command += ["--print-limit", str(MOST_SHOWN), "--show-backtrace", "no", sys.executable]
    command += ["-m", "experiments.parity.memcheck_cases", *arguments]
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, env=dict(variables), stdout=said, stderr=said, start_new_session=True
        )
        try:
            code = _ended(process, said)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        text = _text(said)
    mine = [one for one in known if one.tool == tool]
    return Report(code, text, mine, seconds=time.monotonic() - began)


def _ended(process: subprocess.Popen[bytes], said: IO[bytes]) -> int | None:
    """The exit code; None after the time limit, or where the tool has shown findings enough."""
    deadline = time.monotonic() + TOOL_LIMIT_S
    while time.monotonic() < deadline:
        try:
            return process.wait(timeout=LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            if len(FINDING.findall(_text(said))) >= ENOUGH:
                return None
    return None


def _text(said: IO[bytes]) -> str:
    """What was printed so far, read without moving the place where the process writes."""
    return os.pread(said.fileno(), os.fstat(said.fileno()).st_size, 0).decode(errors="replace")
