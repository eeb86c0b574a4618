"""Device tests in a limited time: a session that ends in good order, and why each test failed.

``--stop-after SECONDS`` lets the running test end, then sums up and names what was not run.
``--outcome FILE`` keeps a JSON of the session's counts and failures, written after each failure, so
that it is there even if the process is killed; sessions side by side share one file, each under its
``--group``.
"""

from __future__ import annotations

import fcntl
import json
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

REASON_LINES = 3
REASON_WIDTH = 600


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("device tests")
    group.addoption("--stop-after", type=float, metavar="SECONDS", help="begin no test after that")
    group.addoption("--outcome", type=Path, metavar="FILE", help="a JSON of counts and failures")
    group.addoption("--group", default="all", help="the name of this session in that JSON")


def pytest_configure(config: pytest.Config) -> None:
    # Absent where this folder is only collected, as by a run of all tests.
    stop_after = config.getoption("stop_after", None)
    outcome = config.getoption("outcome", None)
    if stop_after is not None or outcome is not None:
        group = config.getoption("group")
        config.pluginmanager.register(Limited(group, stop_after, outcome), "device-tests")


class Limited:
    """One session of limited time."""

    def __init__(self, group: str, stop_after: float | None, outcome: Path | None) -> None:
        self.group, self.stop_after, self.outcome = group, stop_after, outcome
        self.began = time.monotonic()
        self.waiting: list[str] = []
        self.counts: Counter[str] = Counter()
        self.failures: list[dict[str, str]] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def pytest_sessionstart(self) -> None:
        # A shell's process in the background ignores it, and Python leaves that as it finds it.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.waiting = [item.nodeid for item in session.items]
        self._keep(ended=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None:
            self._failed(report.nodeid, reason_of(call.excinfo.value))
        elif report.skipped or report.when == "call":
            self.counts[report.outcome] += 1
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed(report.nodeid, report.longreprtext.rstrip().rpartition("\n")[2])

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.waiting.remove(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        found = yield
        if nextitem is not None and self.stop_after is not None and self.seconds > self.stop_after:
            item.session.shouldstop = f"no test is begun after {self.stop_after:g} s"
        return found

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for failure in self.failures:
            terminalreporter.write_line(f"because {failure['test']}: {failure['reason']}")
        for name, count in Counter(one.split("[")[0] for one in self.waiting).items():
            terminalreporter.write_line(f"not run {name} ({count})")

    def pytest_sessionfinish(self) -> None:
        self._keep(ended=True)

    def _failed(self, test: str, reason: str) -> None:
        self.counts["failed"] += 1
        self.failures.append({"test": test, "reason": reason})
        self._keep(ended=False)

    def _keep(self, *, ended: bool) -> None:
        if self.outcome is None:
            return
        found: dict[str, Any] = {
            "ended": ended,
            "seconds": round(self.seconds, 1),
            "counts": dict(self.counts),
            "failures": self.failures,
            "not_run": self.waiting,
        }
        with self.outcome.open("a+") as file:  # closing it gives the lock back
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            others = json.loads(file.read() or "{}")
            file.truncate(0)
            json.dump(others | {self.group: found}, file, indent=1)


def reason_of(error: BaseException) -> str:
    """The first lines of an error and of the innermost one that caused it."""
    *_, innermost = chain_of(error)
    return " <- ".join(first_lines(one) for one in dict.fromkeys((error, innermost)))


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An error, what caused it, and so on; a compiler names the cause as ``inner_exception``."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        inner = getattr(following, "inner_exception", None)
        following = inner if isinstance(inner, BaseException) else following.__cause__


def first_lines(error: BaseException) -> str:
    """Its name and what it says first, in one line."""
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
    return " | ".join(list(filter(None, lines))[:REASON_LINES])[:REASON_WIDTH]
