"""One sitting of a run: witness, parity, samples, each on disk before the next.

The run is decided as soon as the evidence allows. One that was interrupted goes on in a further
sitting from what is on disk.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from experiments import binding, checked, heartbeat
from experiments.arms import failure_of, task_of, witness_of
from experiments.code_watch import CODE_CHANGED, CodeChanged
from experiments.conditions import Limits, limits_for
from experiments.crew import Crew
from experiments.executor import Executor
from experiments.lanes import Lanes
from experiments.parity.battery import Battery
from experiments.parity.bench import Ahead, Execute
from experiments.parity.cache import ParityCache
from experiments.parity_records import CheckResult, ParityReport
from experiments.plan import Run
from experiments.prepare import Comparison, refuse_edited
from experiments.records import Arm, ArmFailure, Decision, Timing
from experiments.replay import decide_record, look_at
from experiments.requests import Listener
from experiments.run_record import RunRecord
from experiments.runner import Collector, End
from experiments.spool import Spool
from experiments.tasks import Task, TaskResult
from experiments.telemetry import Sampler
from experiments.values import Scalar

SETTLE_S = 0.5
"""Length of the look at the idle device from which the loss limits follow, in seconds."""

LIMITS_NOTE = "limits"


@dataclass(frozen=True, slots=True)
class Hands:
    """What runs the processes of witness and parity.

    Attributes:
        execute: runs a task in a fresh process.
        ahead: has tasks at work before they are asked for; None where one runs at a time.
        parts: processes that share the op cases.
    """

    execute: Execute
    ahead: Ahead | None = None
    parts: int = 1


@dataclass(slots=True)
class Sitting:
    """What one process does for a run.

    Attributes:
        comparison: what is compared.
        spool: the run on disk; this process is its writer.
        executor: starts measured processes.
        sampler: sees the device from outside them.
        cache: kept parity results.
        listener: hears what happens.
        crew: makes what runs several parity processes at once; None runs them one by one.
        beside: whether others may work on the device, so that the failure of a process may be
            theirs: it is then no evidence, and not kept. A wrong value is.
        doubt: what so ended this sitting; the run is as one that was interrupted there.
    """

    comparison: Comparison
    spool: Spool
    executor: Executor | Lanes
    sampler: Sampler
    cache: ParityCache
    listener: Listener
    crew: Callable[[], Crew] | None = None
    beside: bool = False
    decision: Decision | None = None
    doubt: str = ""

    def go(self) -> End:
        """Take the steps that are still to do; the decision, if there is one, is kept."""
        return "decided" if self.before_timing() else self._measure()

    def before_timing(self) -> bool:
        """Witness and parity, as far as they are still to do; whether they decide the run."""
        began, parity_s = time.monotonic(), 0.0
        self.bind()
        try:
            with self._hands() as hands:
                battery = self._checks(hands)
                self._begin(hands, battery)
                self._witness(hands.execute)
                if not self.doubt and not self._decided(self.spool.record()):
                    parity_s = self._parity(battery)
        except CodeChanged as error:
            self.spool.fault(CODE_CHANGED, error.message)
        self._close_preliminaries(began, parity_s)
        return not self.doubt and self._decided(self.spool.record())

    def bind(self, *, timed: bool = False) -> None:
        """Note what witness and parity are taken with; those of other code are taken again.

        Raises:
            BadParameter: the lever is another than when the run began, or what was noted has
                changed and there are samples, of this run or (``timed``) of those with it.
        """
        variables = self.executor.frozen.variables
        refuse_edited(self.comparison.spec)
        binding.bind(self.spool, self.comparison, variables, self.listener, timed=timed)

    # --- before any timing -------------------------------------------------------------------

    @contextlib.contextmanager
    def _hands(self) -> Iterator[Hands]:
        """What runs the processes before any timing, one by one or several at once."""
        if self.crew is None or self.spool.record().parity is not None:
            yield Hands(self._execute)
            return
        with self.crew() as crew:
            execute = heartbeat.waiting(crew, self.listener)
            yield Hands(execute, crew.ahead, max(1, crew.size - 2))

    def _checks(self, hands: Hands) -> Battery:
        spec, workload = self.comparison.spec, self.comparison.workload
        return Battery.of(
            spec,
            self.comparison.lever,
            workload,
            hands.execute,
            self.cache,
            ahead=hands.ahead,
            parts=hands.parts,
        )

    def _begin(self, hands: Hands, battery: Battery) -> None:
        """Have the witnesses at work, and beside them what the checks will ask for."""
        if hands.ahead is not None:
            hands.ahead([task for _, task in self._witnesses()])
            battery.begin()

    def _witnesses(self) -> list[tuple[Arm, Task]]:
        """The witnesses that are still to be taken."""
        there = {witness.arm for witness in self.spool.record().witnesses}
        arms: tuple[Arm, Arm] = ("ref", "cand")
        spec = self.comparison.spec
        return [
            (arm, task_of(spec, Run(pair=0, position=0, arm=arm), "witness"))
            for arm in arms
            if arm not in there
        ]

    def _witness(self, execute: Execute) -> None:
        """An untimed pass of each arm: which path ran, per axis, and whether all was put back."""
        self.listener.on_stage("witness", "which path does each arm run?")
        heartbeat.say_compilation(self.listener, self.comparison.lever)
        for arm, task in self._witnesses():
            result = execute(task)
            failure = failure_of(arm, result)
            if failure is not None and self.beside:
                self.doubt = f"witness, {arm} {failure.kind}: {failure.message}"
                return
            if failure is not None:
                self.spool.failure(failure)
            elif result.disagreements:
                text = f"witness, {arm}: {'; '.join(result.disagreements)}"
                self.spool.fault("ranks-disagree", text)
            else:
                self.spool.witness(witness_of(arm, result))
                self.spool.note(f"facts of {arm}", dict(result.facts))

    def _parity(self, battery: Battery) -> float:
        """The battery; returns its seconds. What an earlier sitting finished is not repeated."""
        if self.spool.record().parity is not None:
            return 0.0
        self.listener.on_stage("parity", "is the candidate as right as the reference?")
        began = time.monotonic()
        report, failures = self._battery(battery)
        if self.beside and failures:  # a wrong value is wrong whoever else was at work
            self.doubt = checked.why_ended(self.spool.record(), report, failures)
        if self.doubt:
            return time.monotonic() - began
        for failure in failures:
            self.spool.failure(failure)
        self.spool.parity(report)
        return time.monotonic() - began

    def _battery(self, battery: Battery) -> tuple[ParityReport, tuple[ArmFailure, ...]]:
        return battery.run(self._on_check)

    def _execute(self, task: Task) -> TaskResult:
        return heartbeat.running(self.executor, self.listener)(task)

    def _on_check(self, check: CheckResult) -> None:
        self.spool.check(check)
        self.listener.on_check(check)

    def _close_preliminaries(self, began: float, parity_s: float) -> None:
        self.spool.timing(Timing(total_s=time.monotonic() - began, parity_s=parity_s))

    # --- samples -----------------------------------------------------------------------------

    def _measure(self) -> End:
        if self.executor.not_forkable:
            self.spool.warning(f"each process is a fresh interpreter: {self.executor.not_forkable}")
        spec, plan = self.comparison.spec, self.comparison.plan
        self.listener.on_stage("measure", f"looks at {', '.join(map(str, spec.looks))} pairs")
        collector = Collector(
            spec=spec,
            plan=plan,
            spool=self.spool,
            executor=self.executor,
            judge=self._judge,
            progress=self.listener,
            limits=self.limits(),
            watch=self._watch,
        )
        return collector.collect()

    def _judge(self, record: RunRecord, look: int | None, *, spent: bool) -> bool:
        if look is not None:
            taken = look_at(record, look)
            if taken is not None:
                self.spool.look(taken)
                self.listener.on_look(taken)
        return self._decided(self.spool.record(), ended=spent)

    def _decided(self, record: RunRecord, *, ended: bool = False) -> bool:
        self.decision = decide_record(record, ended=ended)
        return self.decision is not None

    def _watch(self, seconds: float) -> Mapping[str, Scalar]:
        return self.sampler.look(self.executor.processes, seconds)

    def limits(self) -> Limits:
        """What loses a pair: declared at the first sitting, before the first sample."""
        noted = self.spool.noted(LIMITS_NOTE)
        if noted is not None:
            return Limits(**{name: value for name, value in noted.items() if name != "name"})
        seen = self._watch(SETTLE_S)
        cores = len(os.sched_getaffinity(0)) + (self.executor.frozen.measured_core is not None)
        threads = self.executor.frozen.threads
        busy = None if threads is None else min(cores, threads * self.comparison.spec.ranks)
        limits = limits_for(seen, cores, busy)
        self.spool.note(LIMITS_NOTE, limits.as_note())
        return limits
