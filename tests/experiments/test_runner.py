from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.arms import levers_of, task_of, witness_of
from experiments.conditions import Limits
from experiments.executor import Execution
from experiments.plan import Plan, make_plan
from experiments.records import Effect
from experiments.run_record import RunRecord
from experiments.runner import Collector, End, interruptible
from experiments.server_process import ServerDied
from experiments.spec import AbSpec, LeverSetting
from experiments.spool import Spool
from experiments.spool_reader import load
from experiments.stats import paired
from experiments.tasks import Measurement, Task, TaskResult
from experiments.values import Scalar
from tests.support import records_factory, runs
from tests.support.stub_workload import RATE, STUB

RUN_ID = "20260101T000000-aaaaaa"


class Clock:
    """Seconds that pass only when someone works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeExecutor:
    """Runs no process: each task takes two seconds of the fake clock."""

    def __init__(self, clock: Clock) -> None:
        self.server_s = 0.0
        self.clock = clock
        self.asked: list[Task] = []
        self.blocks = 1
        self.answer: Callable[[Task], TaskResult] = self.measured
        self.telemetry: Callable[[Task], Mapping[str, Scalar]] = lambda _: {}

    def new_block(self) -> None:
        self.blocks += 1
        self.server_s += 3.0

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        self.asked.append(task)
        self.clock.now += 2.0
        return Execution(self.answer(task), 2.0, "2026-01-01T00:00:00", self.telemetry(task))

    @staticmethod
    def measured(task: Task) -> TaskResult:
        noise = random.Random(f"{task.pair} {task.arm}").gauss(1.0, 0.01)
        return TaskResult(
            measurement=Measurement(
                values={RATE: 100.0 * noise, "stub/step_ms": 10.0 / noise},
                inputs_digest="same",
                outputs_count=8,
                facts={"oracle_mode": "eager"},
            ),
            start_s=0.1,
            warmup_s=0.4,
            measured_s=1.3,
        )


class Heard:
    def __init__(self) -> None:
        self.samples: list[tuple[int, int, int, float | None]] = []
        self.warnings: list[str] = []

    def on_sample(
        self, done: int, planned: int, effects: Sequence[Effect], seconds_left: float | None
    ) -> None:
        self.samples.append((done, planned, len(effects), seconds_left))

    def on_warning(self, text: str) -> None:
        self.warnings.append(text)


class Judged:
    """Decides at the look that it is told to, and keeps what it was asked."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.asked: list[tuple[int, int | None, bool]] = []

    def __call__(self, record: RunRecord, look: int | None, *, spent: bool) -> bool:
        self.asked.append((len(paired(record.samples, record.lost)), look, spent))
        return spent or look == self.at


class Sitting:
    """One sitting of a run in a folder; a second one on the same folder resumes."""

    def __init__(self, runs_folder: Path, spec: AbSpec, at: int | None = None) -> None:
        self.clock, self.heard, self.judged = Clock(), Heard(), Judged(at)
        self.executor = FakeExecutor(self.clock)
        self.plan: Plan = make_plan(spec.seed, spec.looks[-1], spec.oracle is not None)
        if (runs_folder / RUN_ID).exists():
            self.spool, _ = Spool.resume(runs_folder, RUN_ID)
        else:
            self.spool = Spool.create(runs_folder, head(spec))
        self.spec = spec

    def collect(self, **changes: Any) -> tuple[End, RunRecord]:
        values: dict[str, Any] = {
            "spec": self.spec,
            "plan": self.plan,
            "spool": self.spool,
            "executor": self.executor,
            "judge": self.judged,
            "progress": self.heard,
            "clock": self.clock,
        }
        with self.spool:
            end = Collector(**{**values, **changes}).collect()
            return end, self.spool.record("interrupted")


def head(spec: AbSpec) -> RunRecord:
    return RunRecord(
        run_id=RUN_ID,
        status="running",
        spec=spec,
        plan_digest="d",
        created_at="2026-01-01T00:00:00",
        axes=STUB.axes(spec.parameters),
        environment=records_factory.environment(),
    )


def test_looks_are_taken_at_their_pairs_until_one_decides(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(), at=1)
    end, record = sitting.collect()
    assert end == "decided"
    assert sitting.judged.asked == [(6, 0, False), (9, 1, False)]
    assert len(record.samples) == 18
    assert sitting.heard.samples[-1][:2] == (18, 80)
    assert sitting.heard.samples[-1][2] == 2


def test_the_last_look_is_the_end(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(looks=(6, 9)))
    end, record = sitting.collect()
    assert end == "decided"
    assert sitting.judged.asked[-1] == (9, 1, True)
    assert len(record.samples) == 18


def test_pairs_are_adjacent_balanced_and_in_the_plans_order(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(looks=(8,)))
    sitting.collect()
    asked = [(task.pair, task.position, task.arm) for task in sitting.executor.asked]
    assert asked == [(run.pair, run.position, run.arm) for run in sitting.plan.runs]
    firsts = [arm for _, position, arm in asked if position == 0]
    assert firsts.count("ref") == firsts.count("cand") == 4


def test_each_block_has_a_server_of_its_own(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(looks=(9,)))
    sitting.collect()
    assert sitting.executor.blocks == 3


def test_an_oracle_pair_starts_each_block_and_makes_no_pair(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(looks=(6,), oracle="plain"))
    _, record = sitting.collect()
    arms = [task.arm for task in sitting.executor.asked]
    assert set(arms[:2]) == set(arms[10:12]) == {"oracle", "oracle-ref"}
    oracle = next(task for task in sitting.executor.asked if task.arm == "oracle")
    assert oracle.implementation == "oracle:plain"
    assert oracle.levers == ()
    assert len(record.samples) == 16
    assert record.samples[0].telemetry["oracle_mode"] == "eager"


def test_an_oracle_that_fails_is_named_and_left_out(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(looks=(6,), oracle="plain"))

    def answer(task: Task) -> TaskResult:
        if task.arm == "oracle":
            return TaskResult(failure="crashed", stage="open", message="no oracle here")
        return FakeExecutor.measured(task)

    sitting.executor.answer = answer
    end, record = sitting.collect()
    assert end == "decided"
    assert [(f.arm, f.message) for f in record.failures] == [("oracle", "no oracle here")]
    assert sum(task.arm == "oracle" for task in sitting.executor.asked) == 1


def test_a_failing_arm_ends_the_run_after_the_other_did_the_same_work(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec())

    def answer(task: Task) -> TaskResult:
        if task.arm == "cand":
            return TaskResult(failure="out-of-memory", stage="measure", message="full")
        return FakeExecutor.measured(task)

    sitting.executor.answer = answer
    end, record = sitting.collect()
    assert end == "failure"
    assert [(f.arm, f.kind) for f in record.failures] == [("cand", "out-of-memory")]
    assert {task.arm for task in sitting.executor.asked} == {"ref", "cand"}


def test_a_disturbed_pair_is_lost_with_its_arm_and_replaced(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(looks=(6,)))

    def telemetry(task: Task) -> Mapping[str, Scalar]:
        return {"foreign_processes": int(task.pair == 2 and task.arm == "cand")}

    sitting.executor.telemetry = telemetry
    end, record = sitting.collect()
    assert end == "decided"
    assert [(one.pair, one.arm) for one in record.lost] == [(2, "cand")]
    assert "foreign process" in record.lost[0].cause
    assert len(paired(record.samples, record.lost)) == 6
    assert max(sample.pair for sample in record.samples) == 6


def test_a_clock_stuck_low_ends_the_run_as_throttled(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec())
    sitting.executor.telemetry = lambda _: {
        "busy": True,
        "throttles": "",
        "sm_mhz": 0.59 * 1980,
        "sm_max_mhz": 1980,
    }
    end, record = sitting.collect(watch=lambda _: {"busy": False})
    assert end == "fault"
    assert record.faults[0][0] == "throttled"
    assert "59%" in record.faults[0][1]
    assert len(sitting.executor.asked) == 8


def test_the_wait_for_a_busy_device_is_bounded(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec())

    def busy(seconds: float) -> Mapping[str, Scalar]:
        sitting.clock.now += seconds
        return {"foreign_processes": 1}

    end, record = sitting.collect(watch=busy, wait_limit_s=20.0)
    assert end == "fault"
    assert record.faults[0][0] == "device-busy"
    assert sitting.clock.now == 20.0
    assert not record.samples
    assert len(sitting.heard.warnings) == 1


def test_a_device_that_becomes_free_is_used(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(looks=(6,)))
    answers = [{"throttles": "sw-thermal"}, {"throttles": ""}]
    end, _ = sitting.collect(watch=lambda _: answers.pop(0))
    assert end == "decided"
    assert not answers


def test_the_budget_ends_the_run_before_a_pair_that_would_not_fit(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(budget_s=31.0))
    end, record = sitting.collect()
    assert end == "budget-spent"
    assert len(record.samples) == 14
    assert sitting.judged.asked == [(6, 0, False), (7, None, True)]
    assert sitting.clock.now <= 31.0


def test_time_is_accounted_for(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec(looks=(6,)))
    _, record = sitting.collect()
    timing = record.timing
    assert timing is not None
    assert timing.total_s == pytest.approx(24.0)
    assert timing.arms_measured_s == pytest.approx(12 * 1.3)
    assert timing.arms_warmup_s == pytest.approx(12 * 0.4)
    assert timing.forkserver_s == pytest.approx(3.0)
    assert timing.overhead_share == pytest.approx((24 - 12 * 1.7) / 24)


def test_a_server_that_cannot_start_is_a_fault_of_the_environment(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, runs.spec())

    def answer(_: Task) -> TaskResult:
        raise ServerDied("no torch")

    sitting.executor.answer = answer
    end, record = sitting.collect()
    assert (end, record.faults) == ("fault", (("environment", "no torch"),))


@pytest.mark.parametrize("stop_after", [1, 2, 3, 7, 11, 12])
def test_an_interrupted_run_goes_on_and_counts_nothing_twice(
    tmp_path: Path, stop_after: int
) -> None:
    spec = runs.spec(looks=(6,))
    first = Sitting(tmp_path, spec)

    def answer(task: Task) -> TaskResult:
        if len(first.executor.asked) > stop_after:
            raise KeyboardInterrupt
        return FakeExecutor.measured(task)

    first.executor.answer = answer
    end, record = first.collect()
    assert end == ("decided" if stop_after == 12 else "interrupted")
    assert len(record.samples) == stop_after
    second = Sitting(tmp_path, spec)
    end, record = second.collect()
    assert end == "decided"
    assert sorted((s.pair, s.arm) for s in record.samples) == sorted(
        (run.pair, run.arm) for run in second.plan.runs
    )
    halves = stop_after % 2
    assert len(second.executor.asked) == 12 - stop_after + halves
    assert len(load(tmp_path, RUN_ID).dropped) == 0
    journal = (tmp_path / RUN_ID / "journal.jsonl").read_text()
    assert journal.count('"kind":"dropped"') == halves


def test_a_kill_between_a_sample_and_the_line_that_it_was_lost_is_made_good(
    tmp_path: Path,
) -> None:
    spec = runs.spec(looks=(6,))
    first = Sitting(tmp_path, spec)
    first.executor.telemetry = lambda task: {"foreign_processes": int(task.pair == 0)}
    first.collect(limits=Limits())
    journal = tmp_path / RUN_ID / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"kind":"lost"' not in line))
    second = Sitting(tmp_path, spec)
    _, record = second.collect()
    assert {(one.pair, one.arm) for one in record.lost} == {(0, "ref"), (0, "cand")}


def test_sigterm_ends_a_run_as_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_levers_of_an_arm_are_the_stack_and_the_tested_one_last() -> None:
    other = LeverSetting(lever="planted_fast", setting="on")
    spec = runs.spec(stack=(other,))
    mine = LeverSetting(lever="planted_same", setting="on")
    assert levers_of(spec, "cand") == (other, mine)
    assert levers_of(spec, "ref") == (other,)
    assert levers_of(spec, "oracle") == ()
    ref = next(run for run in make_plan(1, 6).runs if run.arm == "ref")
    subject = task_of(spec, ref).subject
    assert subject is not None
    assert subject.setting == "off"


def test_a_witness_keeps_what_was_left_changed() -> None:
    result = TaskResult(plans={RATE: "kernel=x"}, launches={"s": 1}, left_changed=("a",))
    witness = witness_of("cand", result)
    assert witness.plans[RATE] == "kernel=x"
    assert witness.left_changed == ("a",)
