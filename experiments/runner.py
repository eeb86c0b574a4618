"""The measuring loop: from the plan to samples on disk, until a look decides or the plan ends.

Each sample is on disk before the next process starts. A pair is two adjacent runs: where only one
side is on disk (the run was killed) the pair is measured again whole and the lone side is dropped.
Clock, sleep, executor and telemetry are arguments, so the loop is tested without time.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Literal

from experiments.arms import failure_of, sample_of, task_of
from experiments.code_watch import CODE_CHANGED, CodeChanged
from experiments.conditions import Limits, fault_of, lost_cause
from experiments.executor import Execution
from experiments.plan import Plan, Run, Step, remaining
from experiments.records import Arm, Effect, LostPair, Sample, Timing
from experiments.run_record import RunRecord
from experiments.runner_ports import Judge, Progress, Runs, Watch
from experiments.server_process import ServerDied
from experiments.spec import AbSpec
from experiments.spool import Spool
from experiments.stats import axis_effect, paired

CONSECUTIVE_LOST = 4
"""Pairs lost in a row (a whole block) after which the device counts as unusable."""

WAIT_LIMIT_S = 120.0
"""Longest wait for a busy or hot device before the run is invalid."""

WAIT_STEP_S = 1.0
"""Length of one look at a device that one waits for."""

DROPPED = "its pair was cut in half; a pair is measured back to back"

End = Literal["decided", "plan-done", "budget-spent", "failure", "fault", "interrupted"]


@dataclass(slots=True)
class Collector:
    """One sitting of a run.

    Attributes:
        spec: what is compared.
        plan: the order of all runs.
        spool: the run on disk, with this process as its writer.
        executor: starts processes.
        judge: asked at each planned look, and when no further pair will come.
        limits: what loses a pair, declared before the first sample.
        progress: hears of samples.
        watch: sees the device between pairs; None never waits.
        clock: monotonic seconds.
        wait_limit_s: longest wait for a usable device.
    """

    spec: AbSpec
    plan: Plan
    spool: Spool
    executor: Runs
    judge: Judge
    progress: Progress
    limits: Limits = field(default_factory=Limits)
    watch: Watch | None = None
    clock: Callable[[], float] = time.monotonic
    wait_limit_s: float = WAIT_LIMIT_S
    _block: int | None = None
    _judged: int | None = None
    _oracle_failed: bool = False
    _spent_before_s: float = 0.0
    _began_s: float = 0.0
    _sitting: list[Sample] = field(default_factory=list)

    def collect(self) -> End:
        """Measure until a look decides, the plan or the budget ends, an arm fails, or a fault."""
        self._began_s = self.clock()
        before = self.executor.server_s
        self._take_up()
        try:
            end = self._loop()
        except KeyboardInterrupt:
            end = "interrupted"
        except ServerDied as error:
            self.spool.fault("environment", str(error))
            end = "fault"
        except CodeChanged as error:
            self.spool.fault(CODE_CHANGED, error.message)
            end = "fault"
        self.spool.timing(self._timing(self.executor.server_s - before))
        return end

    def _take_up(self) -> None:
        """Put in order what an earlier sitting left: halves are dropped, lost pairs are named.

        A sample is written before the line that its pair is lost, so a kill between the two is made
        good here from the sample's own telemetry and the same limits.
        """
        record = self.spool.record()
        self._spent_before_s = sum(sample.wall_s for sample in record.samples)
        self._oracle_failed = any(one.arm == "oracle" for one in record.failures)
        named = {(one.pair, one.arm) for one in record.lost}
        for step in remaining(self.plan, record.samples, record.lost):
            for run in step.runs:
                if any((s.pair, s.arm) == (run.pair, run.arm) for s in record.samples):
                    self.spool.drop(run.pair, run.arm, DROPPED)
        for sample in self.spool.record().samples:
            cause = lost_cause(sample.telemetry, self.limits)
            if cause and (sample.pair, sample.arm) not in named:
                self.spool.lost(LostPair(pair=sample.pair, arm=sample.arm, cause=cause))

    def _loop(self) -> End:
        lost_in_a_row: list[str] = []
        while True:
            if self._decides():
                return "decided"
            step = self._next_step()
            if step is None:
                self.judge(self.spool.record(), None, spent=True)
                return "plan-done"
            if self._over_budget(step):
                self.judge(self.spool.record(), None, spent=True)
                return "budget-spent"
            if not self._usable(lost_in_a_row):
                return "fault"
            cause = self._run_step(step)
            if cause is None:
                return "failure"
            lost_in_a_row = [*lost_in_a_row, cause] if cause else []

    def _next_step(self) -> Step | None:
        record = self.spool.record()
        for step in remaining(self.plan, record.samples, record.lost):
            if step.kind == "pair" or not self._oracle_failed:
                return step
        return None

    def _over_budget(self, step: Step) -> bool:
        """Whether the step would end after the budget, by the lengths of the runs so far."""
        if self.spec.budget_s is None:
            return False
        return self._elapsed_s() + self._expected_s(step.runs) > self.spec.budget_s

    def _elapsed_s(self) -> float:
        return self._spent_before_s + self.clock() - self._began_s

    def _expected_s(self, runs: Sequence[Run]) -> float:
        """Seconds of these runs, each by the median of its arm so far, or of all where it has none.

        An oracle that compiles takes many times as long as an arm, its first process longest, and a
        candidate less.
        """
        samples = self.spool.record().samples
        walls = {
            arm: [s.wall_s for s in samples if s.arm == arm] for arm in {s.arm for s in samples}
        }
        every = [sample.wall_s for sample in samples] or [0.0]
        usual = {arm: median_low(found) for arm, found in walls.items()}
        return sum(usual.get(run.arm, median_low(every)) for run in runs)

    def _usable(self, lost_in_a_row: list[str]) -> bool:
        """Wait, within the limit, for a device that is neither busy nor slowed down.

        A device that loses a whole block of pairs although each wait found it usable is not: its
        slowdown shows under load only.
        """
        cause = lost_in_a_row[-1] if len(lost_in_a_row) >= CONSECUTIVE_LOST else ""
        text = f"{len(lost_in_a_row)} pairs in a row were lost"
        if not cause and self.watch is not None and (lost_in_a_row or self._block is None):
            cause = self._wait(self.watch)
            text = f"waited {self.wait_limit_s:.0f} s for a usable device"
        if cause:
            self.spool.fault(fault_of(cause), f"{text}: {cause}")
        return not cause

    def _wait(self, watch: Watch) -> str:
        start, warned = self.clock(), False
        while cause := lost_cause(watch(WAIT_STEP_S), self.limits):
            if not warned:
                self.progress.on_warning(f"waiting for the device: {cause}")
                warned = True
            if self.clock() - start >= self.wait_limit_s:
                return cause
        return ""

    def _run_step(self, step: Step) -> str | None:
        """Run both sides; the cause if the pair was lost, else empty; None where an arm failed.

        After a failure of the first side the second still runs: a failing candidate is told from a
        device on which the reference fails too. An oracle that fails is named and left out.
        """
        if self._block not in (None, step.block):
            self.executor.new_block()
        self._block = step.block
        causes = self._run_in_turns(step) if self.spec.interleaved else self._run_one_by_one(step)
        if any(cause is None for arm, cause in causes.items() if arm != "oracle"):
            return None
        return next(filter(None, causes.values()), "")

    def _run_one_by_one(self, step: Step) -> dict[Arm, str | None]:
        return {
            run.arm: self._take(run, self.executor.run(task_of(self.spec, run)))
            for run in step.runs
        }

    def _run_in_turns(self, step: Step) -> dict[Arm, str | None]:
        """Both processes at once, one of them at work at a time: a slow moment falls on both."""
        first, second = step.runs
        tasks = task_of(self.spec, first), task_of(self.spec, second)
        executions = self.executor.run_pair(*tasks)
        return {
            run.arm: self._take(run, execution)
            for run, execution in zip(step.runs, executions, strict=True)
        }

    def _take(self, run: Run, execution: Execution) -> str | None:
        """One process: its sample and what disturbed it on disk; None where it failed."""
        failure = failure_of(run.arm, execution.result)
        if failure is not None:
            self.spool.failure(failure)
            self._oracle_failed |= run.arm == "oracle"
            return None
        if execution.result.disagreements:
            text = "; ".join(execution.result.disagreements)
            self.spool.fault("ranks-disagree", f"pair {run.pair}, {run.arm}: {text}")
            return None
        if execution.result.left_changed and run.arm != "oracle":
            left = "; ".join(execution.result.left_changed)
            self.spool.fault("state-leaked", f"pair {run.pair}, {run.arm}: {left}")
            return None
        sample = sample_of(run, execution)
        self.spool.sample(sample)
        self._sitting.append(sample)
        cause = lost_cause(sample.telemetry, self.limits)
        if cause:
            self.spool.lost(LostPair(pair=run.pair, arm=run.arm, cause=cause))
        self._report()
        return cause

    def _report(self) -> None:
        record = self.spool.record()
        have = {(sample.pair, sample.arm) for sample in record.samples}
        steps = remaining(self.plan, record.samples, record.lost)
        left = [run for step in steps for run in step.runs if (run.pair, run.arm) not in have]
        seconds = self._expected_s(left)
        if self.spec.budget_s is not None:
            seconds = max(0.0, min(seconds, self.spec.budget_s - self._elapsed_s()))
        done = len(record.samples)
        self.progress.on_sample(done, done + len(left), running_effects(record), seconds)

    def _decides(self) -> bool:
        """Whether a planned look is due now, and decides.

        A look that an earlier sitting took just before it was killed is taken again: it is the same
        look at the same samples.
        """
        record = self.spool.record()
        valid = len(paired(record.samples, record.lost))
        if valid not in self.spec.looks or self.spec.looks.index(valid) == self._judged:
            return False
        self._judged = self.spec.looks.index(valid)
        return self.judge(record, self._judged, spent=self._judged == len(self.spec.looks) - 1)

    def _timing(self, server_s: float) -> Timing:
        return Timing(
            total_s=self.clock() - self._began_s,
            arms_start_s=sum(s.start_s for s in self._sitting),
            arms_warmup_s=sum(s.warmup_s for s in self._sitting),
            arms_measured_s=sum(s.measured_s for s in self._sitting),
            forkserver_s=server_s,
        )


def running_effects(record: RunRecord) -> tuple[Effect, ...]:
    """The effects so far, at the level of the next look: shown while it runs, never decided on."""
    pairs = paired(record.samples, record.lost)
    looks = record.spec.looks
    if len(pairs) < 3:
        return ()
    index = next((i for i, look in enumerate(looks) if look >= len(pairs)), len(looks) - 1)
    found = (axis_effect(axis, pairs, looks, index, record.spec.sequential) for axis in record.axes)
    return tuple(effect for effect in found if effect is not None)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM into the interrupt that Ctrl-C raises, so that a run ends resumable."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
