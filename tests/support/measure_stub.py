"""Measures the stub workload into a runs folder, or goes on with the run there: to be killed.

``python tests/support/measure_stub.py RUNS [--real]``: one block of pairs through the fork server,
or several through an executor that takes five milliseconds and starts no process.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.executor import Execution, Executor
from experiments.plan import Plan, make_plan
from experiments.records import Effect
from experiments.run_record import RunRecord
from experiments.runner import Collector, interruptible
from experiments.runner_ports import Runs
from experiments.spec import AbSpec
from experiments.spool import Spool
from experiments.tasks import Measurement, Task, TaskResult
from tests.support import records_factory, runs
from tests.support.stub_workload import RATE, STEP, STUB

RUN_ID = "20260101T000000-ffffff"
QUICK = runs.spec(looks=(6, 9, 13), oracle="plain")
REAL = runs.spec(looks=(4,))


class Quick:
    """Answers after five milliseconds."""

    server_s = 0.0

    def new_block(self) -> None:
        """There is no server."""

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        time.sleep(0.005)
        value = random.gauss(100.0, 1.0)
        measurement = Measurement(
            values={RATE: value, STEP: 1e3 / value}, inputs_digest="same", outputs_count=8
        )
        result = TaskResult(measurement=measurement, start_s=0.001, measured_s=0.004)
        return Execution(result, 0.005, "2026-01-01T00:00:00")


class Printer:
    """Reports each sample as it is on disk."""

    def on_sample(
        self, done: int, planned: int, effects: Sequence[Effect], seconds_left: float | None
    ) -> None:
        print(done, flush=True)

    def on_warning(self, text: str) -> None:
        print(text, file=sys.stderr)


def judge(record: RunRecord, look: int | None, *, spent: bool) -> bool:
    """Only the end of the plan decides."""
    return spent


@contextmanager
def runner(spec: AbSpec) -> Iterator[Runs]:
    if spec is QUICK:
        yield Quick()
        return
    with (
        tempfile.TemporaryDirectory() as work,
        Executor(runs.frozen(spec), Path(work)) as executor,
    ):
        yield executor


def plan_of(spec: AbSpec) -> Plan:
    return make_plan(spec.seed, spec.looks[-1], oracle=spec.oracle is not None)


def begin_or_resume(folder: Path, spec: AbSpec) -> Spool:
    if (folder / RUN_ID / "spec.json").exists():
        return Spool.resume(folder, RUN_ID)[0]
    head = RunRecord(
        run_id=RUN_ID,
        status="running",
        spec=spec,
        plan_digest="d",
        created_at="2026-01-01T00:00:00",
        axes=STUB.axes(spec.parameters),
        environment=records_factory.environment(),
    )
    return Spool.create(folder, head)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--real", action="store_true")
    arguments = parser.parse_args()
    spec = REAL if arguments.real else QUICK
    with (
        begin_or_resume(arguments.folder, spec) as spool,
        runner(spec) as executor,
        interruptible(),
    ):
        end = Collector(spec, plan_of(spec), spool, executor, judge, Printer()).collect()
    print(end, flush=True)


if __name__ == "__main__":
    main()
