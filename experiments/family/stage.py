"""The measuring of a selection: rounds of the reference and each living setting, losers dropped.

Rounds go on until one setting is left, all that are left are decided, the looks end, or the budget
does. Every sample is on disk before the next process starts, in the folder of its setting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from experiments import formats
from experiments.arms import failure_of, sample_of, task_of
from experiments.code_watch import CODE_CHANGED, CodeChanged
from experiments.conditions import Limits, fault_of, lost_cause
from experiments.decide.order import decide_before_timing
from experiments.executor import Execution
from experiments.family.plan import REF, round_order
from experiments.family.rules import SURVIVES, decision_at, levels, look_at_level, read_settings
from experiments.plan import BLOCK_PAIRS, Plan, Run
from experiments.prepare import Comparison
from experiments.records import Arm, Decision, Look, LostPair, Sample
from experiments.replay import evidence_of
from experiments.requests import Listener
from experiments.runner import CONSECUTIVE_LOST, WAIT_LIMIT_S, WAIT_STEP_S
from experiments.runner_ports import Runs, Watch
from experiments.server_process import ServerDied
from experiments.spec import AbSpec
from experiments.spool import Spool
from experiments.stats import paired

READING = "reading"
"""Name of the note in a setting's journal that says how the rules read it last."""


@dataclass(slots=True)
class Member:
    """One setting in the selection, with its evidence on disk.

    ``reading`` is what the rules say of it now; ``judged`` the index of its last look.
    """

    setting: str
    comparison: Comparison
    spool: Spool
    reading: Decision | None = None
    judged: int = -1
    look: Look | None = None

    @property
    def spec(self) -> AbSpec:
        """Its comparison with the reference."""
        return self.comparison.spec

    @property
    def living(self) -> bool:
        """Whether it is still in the schedule."""
        return self.reading is None or self.reading.outcome in SURVIVES

    def read(self, decision: Decision | None) -> None:
        """Keep what the rules say of it, also on disk, for a selection that is gone on with."""
        self.reading = decision
        said = decision.model_dump(mode="json") if decision is not None else None
        self.spool.note(READING, {"decision": said, "judged": self.judged})

    @property
    def rounds(self) -> int:
        """Its valid rounds."""
        record = self.spool.record()
        return len(paired(record.samples, record.lost))


@dataclass(slots=True)
class Stage:
    """The rounds of one selection.

    Attributes:
        members: the settings, in the order of the request; those that parity decided are read.
        executor: starts measured processes.
        limits: what loses a run, declared before the first sample.
        listener: hears what happens.
        rounds: how many are measured already.
        watch: sees the device between rounds; None never waits.
        budget_s: wall-clock limit of the rounds.
    """

    members: Sequence[Member]
    executor: Runs
    limits: Limits
    listener: Listener
    watch: Watch | None = None
    budget_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    wait_limit_s: float = WAIT_LIMIT_S
    rounds: int = 0
    _oracle_failed: bool = False
    _round_s: float = 0.0
    _lost_in_a_row: list[str] = field(default_factory=list)

    @property
    def living(self) -> list[Member]:
        """The settings still in the schedule."""
        return [member for member in self.members if member.living]

    @property
    def spec(self) -> AbSpec:
        """What all settings share: workload, device, seed, looks, oracle, policy."""
        return self.members[0].spec

    def go(self) -> str:
        """Measure rounds until the selection can end; says why it did."""
        began = self.clock()
        if self.rounds:  # gone on with: a look that was due when it was interrupted is due now
            self._read()
        try:
            while not (end := self._ended(self.clock() - began)):
                self._round()
                self._read()
        except ServerDied as error:
            self._fault("environment", str(error))
            end = "the processes could not be started"
        except CodeChanged as error:
            self._fault(CODE_CHANGED, error.message)
            end = "code was edited"
        return end

    # --- when it ends ------------------------------------------------------------------------

    def _ended(self, spent_s: float) -> str:
        living = self.living
        if len(living) < 2:
            return "one setting is left" if living else "no setting is left"
        if all(member.reading is not None for member in living):
            return "every setting that is left is decided"
        if self.rounds >= self._most_rounds:
            return f"{self.rounds} rounds were measured, too many of them lost"
        if self.budget_s is not None and spent_s + self._round_s > self.budget_s:
            return f"its share of the budget, {formats.duration(self.budget_s)}, is spent"
        return self._unusable()

    @property
    def _most_rounds(self) -> int:
        plan = Plan(seed=self.spec.seed, pairs=self.spec.looks[-1])
        return plan.pairs + plan.most_lost

    def _unusable(self) -> str:
        """Wait, within the limit, for a usable device; why it is none, or empty."""
        lost = self._lost_in_a_row
        cause, text = "", f"{len(lost)} rounds in a row were lost"
        if len(lost) >= CONSECUTIVE_LOST:
            cause = lost[-1]
        elif self.watch is not None and (lost or not self.rounds):
            cause = self._wait(self.watch)
            text = f"waited {self.wait_limit_s:.0f} s for a usable device"
        if not cause:
            return ""
        self._fault(fault_of(cause), f"{text}: {cause}")
        return f"the device was not usable: {cause}"

    def _wait(self, watch: Watch) -> str:
        start, warned = self.clock(), False
        while cause := lost_cause(watch(WAIT_STEP_S), self.limits):
            if not warned:
                self.listener.on_warning(f"waiting for the device: {cause}")
                warned = True
            if self.clock() - start >= self.wait_limit_s:
                return cause
        return ""

    def _fault(self, code: str, text: str) -> None:
        """A fault of the machine: no setting that is left can be read."""
        for member in self.living:
            member.spool.fault(code, text)
            member.read(decide_before_timing(evidence_of(member.spool.record(), None)))

    # --- one round ---------------------------------------------------------------------------

    def _round(self) -> None:
        start, number, living = self.clock(), self.rounds, self.living
        if number % BLOCK_PAIRS == 0:
            if number:
                self.executor.new_block()
            if self.spec.oracle is not None and not self._oracle_failed:
                self._oracle_pair(number)
        order = round_order(self.spec.seed, number, [member.setting for member in living])
        by_setting = {member.setting: member for member in living}
        before = {name: order.index(REF) < order.index(name) for name in by_setting}
        causes = [
            self._reference(number, living, before)
            if arm == REF
            else self._candidate(number, by_setting[arm], before[arm])
            for arm in order
        ]
        lost = next(filter(None, causes), "")
        self._lost_in_a_row = [*self._lost_in_a_row, lost] if lost else []
        self.rounds += 1
        self._round_s = self.clock() - start
        left = (self.spec.looks[-1] - self.rounds) * self._round_s
        arms = len(living) + 1
        self.listener.on_sample(self.rounds * arms, self.spec.looks[-1] * arms, (), max(0.0, left))

    def _reference(self, number: int, living: list[Member], before: Mapping[str, bool]) -> str:
        """The reference of the round, once for all settings; why it was lost, or empty."""
        execution = self._execute(Run(pair=number, position=0, arm="ref"), self.spec)
        causes = []
        for member in living:
            position = 0 if before[member.setting] else 1
            run = Run(pair=number, position=1 if position else 0, arm="ref")
            causes.append(self._keep(member, run, execution))
        return causes[0]

    def _candidate(self, number: int, member: Member, second: bool) -> str:
        run = Run(pair=number, position=1 if second else 0, arm="cand")
        return self._keep(member, run, self._execute(run, member.spec))

    def _oracle_pair(self, number: int) -> None:
        """The block's oracle pair, kept for each living setting."""
        arms: tuple[Arm, Arm] = ("oracle-ref", "oracle")
        first = Plan(seed=self.spec.seed, pairs=self.spec.looks[-1]).oracle_order(number // 4)
        for position, arm in enumerate(arms if first == 1 else arms[::-1]):
            run = Run(pair=number, position=1 if position else 0, arm=arm)
            execution = self._execute(run, self.spec)
            self._oracle_failed |= arm == "oracle" and execution.result.failure is not None
            for member in self.living:
                self._keep(member, run, execution)

    def _execute(self, run: Run, spec: AbSpec) -> Execution:
        return self.executor.run(task_of(spec, run))

    def _keep(self, member: Member, run: Run, execution: Execution) -> str:
        """Put a run on disk; the cause if it was lost, else empty."""
        failure = failure_of(run.arm, execution.result)
        if failure is not None:
            member.spool.failure(failure)
            return ""
        sample: Sample = sample_of(run, execution)
        member.spool.sample(sample)
        cause = lost_cause(sample.telemetry, self.limits)
        if cause:
            member.spool.lost(LostPair(pair=run.pair, arm=run.arm, cause=cause))
        return cause

    # --- looks -------------------------------------------------------------------------------

    def _read(self) -> None:
        """Drop what failed in this round, then take the looks that are due."""
        living = self.living
        for member in living:
            record = member.spool.record()
            if record.failures:
                failed = decide_before_timing(evidence_of(record, None))
                member.read(failed or member.reading)
        due: dict[int, list[Member]] = {}
        for member in self.living:
            index = _due(member)
            if index is not None:
                due.setdefault(index, []).append(member)
        for index, members in due.items():
            self._look(index, members)
        gone = [member.setting for member in living if not member.living]
        if gone:
            left = ", ".join(member.setting for member in self.living) or "none"
            self.listener.on_stage("selection", f"dropped {', '.join(gone)}; left: {left}")

    def _look(self, index: int, members: list[Member]) -> None:
        by_setting = {member.setting: member for member in members}

        def read(setting: str, level: float) -> Decision | None:
            member = by_setting[setting]
            record = member.spool.record()
            member.look = look_at_level(record, index, level)
            return decision_at(record, index, level)

        dropped = sum(1 for member in self.members if not member.living)
        level = levels(self.spec.looks)[index]
        found = read_settings(by_setting, len(self.members), dropped, level, read)
        for setting, member in by_setting.items():
            if member.look is not None:
                member.spool.look(member.look)
            member.judged = index
            member.read(found.get(setting))


def _due(member: Member) -> int | None:
    """The index of the look that a setting has just reached, or None."""
    looks, valid = member.spec.looks, member.rounds
    if valid not in looks or looks.index(valid) <= member.judged:
        return None
    return looks.index(valid)
