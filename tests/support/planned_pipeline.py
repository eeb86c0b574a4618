"""A pipeline whose answers are planned, so that the command line is tested by itself.

``python -m support.planned_pipeline NAME ARGUMENTS...`` runs the real command line in this process,
with each run being the record ``NAME`` of the factory (or what a name of ``MISTAKES`` raises).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import records_factory

import cli
import experiments
from experiments.requests import (
    AbRequest,
    HistoryRow,
    ImportRow,
    LeverRow,
    Listener,
    Standing,
    SyncReport,
)
from levers.errors import NotRestored, StoreError, UnknownName

MISTAKES: dict[str, BaseException] = {
    "unknown": UnknownName("lever", "fa2_nsplit_cap", ["fa2_nsplits_cap"]),
    "store": StoreError("the registry is damaged", cure="restore it from its bundles"),
    "not-restored": NotRestored("x: disable left site changed", cure="put back what was found"),
    "bug": RuntimeError("a bug\nwith two lines"),
    "interrupt": KeyboardInterrupt(),
    "pipe": BrokenPipeError(),
    "full": OSError(errno.ENOSPC, "No space left on device"),
}


class PlannedPipeline(types.ModuleType):
    """Stands where the pipeline would be imported from, and remembers what was asked."""

    def __init__(self, name: str) -> None:
        super().__init__("experiments.pipeline")
        self.planned = name
        self.asked: list[Any] = []

    def _record(self) -> Any:
        if self.planned == "ended":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        if self.planned in MISTAKES:
            raise MISTAKES[self.planned]
        return records_factory.ALL[self.planned]()

    def ab(self, request: AbRequest, listener: Listener) -> Any:
        self.asked.append(request)
        record = self._record()
        listener.on_stage("parity", "the battery")
        for check in record.parity.checks if record.parity else ():
            listener.on_check(check)
        listener.on_stage("measure", "planned looks at 6, 9, 13")
        listener.on_estimate(140.0, 40)
        for look in record.looks:
            listener.on_sample(look.pairs, 40, look.effects, 30.0)
            listener.on_look(look)
        for warning in record.warnings:
            listener.on_warning(warning)
        return record

    def show(self, run: str) -> Any:
        self.asked.append(run)
        return self._record()

    def standing(self, run_id: str) -> Standing:
        return Standing()

    def report_html(self, record: Any, beside: Standing) -> str:
        return f"<!doctype html>{record.run_id}"

    def history(self, lever: str | None) -> tuple[HistoryRow, ...]:
        if lever == "never_run":
            return ()
        rest = ("fa2_nsplits_cap", "off", "auto", "decode", "CPU")
        return (
            HistoryRow("20260305T100000Z-aaaa", "2026-03-05T10:00:00+00:00", *rest, "running"),
            HistoryRow(
                "20260304T100000Z-5d3c",
                "2026-03-04T10:00:00+00:00",
                *rest,
                "decided",
                "default-ON",
                "failing-axis-win",
                "decode/tok_s/c8",
                0.116,
                float("-inf"),
                float("inf"),
                13,
            ),
        )

    def listing(self) -> tuple[LeverRow, ...]:
        return (
            LeverRow("fa2_nsplits_cap", "Cap the splits.", "off | auto | 1..128", ("decode",)),
            LeverRow("lost", broken="ModuleNotFoundError: No module named 'nowhere'"),
        )

    def replay(self, run: str) -> tuple[Any, Any]:
        stored = self._record().decision
        other = records_factory.terminal().decision
        return stored, (other if self.planned == "regression" else stored)

    def export(self, run: str, path: Path) -> Path:
        written = path / f"{run}.levergate.json" if path.is_dir() else path
        written.write_text(self._record().model_dump_json())
        return written

    def import_bundles(self, paths: list[Path], heard: Callable[[ImportRow], None]) -> None:
        for path in paths:
            heard(ImportRow(str(path), "20260304T100000Z-5d3c", True))

    def sync(self) -> SyncReport:
        if self.planned == "store":
            return SyncReport(("a",), ("b", "c"), "the server does not answer")
        return SyncReport(("a", "b"))

    def ui(self, port: int) -> None:
        self.asked.append(port)


def install(name: str) -> PlannedPipeline:
    """Put a planned pipeline where the commands look for it."""
    pipeline = PlannedPipeline(name)
    sys.modules["experiments.pipeline"] = pipeline
    experiments.pipeline = pipeline  # type: ignore[attr-defined]
    return pipeline


if __name__ == "__main__":
    install(sys.argv[1])
    del sys.argv[1]
    sys.exit(cli.main())
