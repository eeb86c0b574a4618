"""The measuring of a stack: blocks of all its rows, each sample on disk before the next process.

A block that was cut by a kill is measured again whole, since its rows must be near in time. A row
that fails is named and left out of later blocks; the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from experiments.arms import failure_of, sample_of, task_of, witness_of
from experiments.code_watch import CODE_CHANGED, CodeChanged
from experiments.conditions import Limits, fault_of, lost_cause
from experiments.decide.samples import does_a_part, overwritten_text
from experiments.executor import Execution
from experiments.oracle_facts import ORACLE_MODE_FACT
from experiments.parity_records import ParityReport
from experiments.plan import Run
from experiments.records import Arm, ArmFailure, LostPair, Sample
from experiments.requests import Listener
from experiments.runner import WAIT_LIMIT_S, WAIT_STEP_S
from experiments.runner_ports import Runs, Watch
from experiments.server_process import ServerDied
from experiments.spec import AbSpec
from experiments.spool import Spool
from experiments.stack.plan import Schedule, most_lost
from experiments.stack.records import Row, RowEvidence, StackSpec
from experiments.stack.stats import whole_blocks
from experiments.tasks import Task
from experiments.values import unlike
from experiments.witnessing import ARGUMENT

CUT = "its block was cut; a block is measured without a break"

WORK_FACTS = ("tokens", "matmul_flop", "attention_flop")
"""Facts of a sample that are the same in all rows, or the rows did other work."""


@dataclass(slots=True)
class Cell:
    """One row with its evidence on disk."""

    row: Row
    spec: AbSpec
    spool: Spool

    @property
    def arm(self) -> Arm:
        """The arm of its processes."""
        return self.row.arm

    def evidence(self) -> RowEvidence:
        """All that is on disk of this row."""
        record = self.spool.record()
        plans: Mapping[str, str] = record.witnesses[-1].plans if record.witnesses else {}
        return RowEvidence(
            row=self.row,
            parity=record.parity,
            plans=plans,
            samples=record.samples,
            lost=record.lost,
            failures=record.failures,
        )

    def parity(self) -> ParityReport | None:
        """Its parity report, if there is one."""
        return self.spool.record().parity


@dataclass(slots=True)
class Stage:
    """The blocks of one stack.

    Attributes:
        spec: what is measured.
        cells: the rows, in the order of the spec.
        executor: starts measured processes.
        limits: what loses a block, declared before the first sample.
        listener: hears what happens.
        watch: sees the device between blocks; None never waits.
        spent_s: seconds that earlier sittings measured.
    """

    spec: StackSpec
    cells: Sequence[Cell]
    executor: Runs
    limits: Limits
    listener: Listener
    watch: Watch | None = None
    clock: Callable[[], float] = time.monotonic
    wait_limit_s: float = WAIT_LIMIT_S
    spent_s: float = 0.0
    _block_s: float = 0.0
    _disturbed: bool = False
    _faults: list[tuple[str, str]] = field(default_factory=list)

    def go(self) -> str:
        """Measure blocks until the plan or the budget ends; says why it did."""
        began = self.clock()
        self._take_up()
        try:
            while not (end := self._ended(self.spent_s + self.clock() - began)):
                self._block(*self._left()[0])
        except ServerDied as error:
            self._fault("environment", str(error))
            end = "the processes could not be started"
        except CodeChanged as error:
            self._fault(CODE_CHANGED, error.message)
            end = "code was edited"
        return end

    @property
    def faults(self) -> tuple[tuple[str, str], ...]:
        """What makes the whole table worthless, as codes with texts."""
        return tuple(self._faults)

    # --- what is left ------------------------------------------------------------------------

    def _take_up(self) -> None:
        """Drop the samples of a block that was cut by a kill."""
        whole, lost = self._blocks()
        for cell in self.cells:
            record = cell.spool.record()
            for sample in record.samples if not record.failures else ():
                if sample.pair not in whole and sample.pair not in lost:
                    cell.spool.drop(sample.pair, sample.arm, CUT)

    def _blocks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        found = [cell.evidence() for cell in self.cells]
        return whole_blocks(found, interleaved=self.spec.interleaved)

    def _left(self) -> list[tuple[int, int]]:
        schedule = Schedule(self.spec.seed, self.spec.blocks, len(self.cells))
        return schedule.left(*self._blocks())

    def _ended(self, spent_s: float) -> str:
        if self._faults:
            return "a fault ended it"
        if self.cells[0].spool.record().failures:
            self._fault("reference-failed", self.cells[0].evidence().failed)
            return "the row without levers could not run"
        lost = self._blocks()[1]
        if len(lost) > most_lost(self.spec.blocks):
            self._fault("pairs-lost", f"{len(lost)} blocks were lost to a disturbed device")
            return "too many blocks were lost"
        left = self._left()
        if not left:
            return f"all {self.spec.blocks} planned blocks are measured"
        opens_pair = left[0][1] % 2 == 0
        budget_s = self.spec.budget_s
        if budget_s is not None and opens_pair and spent_s + 2 * self._block_s > budget_s:
            return "the budget is spent"
        return self._unusable()

    def _unusable(self) -> str:
        """Wait, within the limit, for a usable device; why it is none, or empty."""
        if self.watch is None or not (self._disturbed or not self._block_s):
            return ""
        start, warned = self.clock(), False
        while cause := lost_cause(self.watch(WAIT_STEP_S), self.limits):
            if not warned:
                self.listener.on_warning(f"waiting for the device: {cause}")
                warned = True
            if self.clock() - start >= self.wait_limit_s:
                text = f"waited {self.wait_limit_s:.0f} s for a usable device: {cause}"
                self._fault(fault_of(cause), text)
                return "the device was not usable"
        return ""

    def _fault(self, code: str, text: str) -> None:
        if not self._faults:
            self._faults.append((code, text))
            self.cells[0].spool.fault(code, text)

    # --- one block ---------------------------------------------------------------------------

    def _block(self, number: int, slot: int) -> None:
        """Run each row that can run once, in the order of the block."""
        start = self.clock()
        if self._block_s and slot % 2 == 0:
            self.executor.new_block()
        order = Schedule(self.spec.seed, self.spec.blocks, len(self.cells)).order(slot)
        self._disturbed = False
        for cell in (self.cells[index] for index in order):
            if cell.spool.record().failures or self._disturbed:
                continue
            if not self.spec.interleaved:
                self._take(cell, cell.arm, number, self.executor.run(self.task(cell, number)))
            elif cell.arm != "ref":
                self._in_turns(cell, number, slot)
            self._report()
        self._block_s = self.clock() - start
        self._compare(number)

    def _in_turns(self, cell: Cell, number: int, slot: int) -> None:
        """A row and the reference at once, one of them at work at a time; who begins alternates."""
        sides = [self.cells[0], cell] if slot % 2 == 0 else [cell, self.cells[0]]
        first, second = (self.task(one, number) for one in sides)
        executions = self.executor.run_pair(first, second)
        for position, (side, execution) in enumerate(zip(sides, executions, strict=True)):
            self._take(cell, side.arm, number, execution, position)

    def _take(
        self, cell: Cell, arm: Arm, number: int, execution: Execution, position: int = 0
    ) -> None:
        """One process: its sample and what disturbed it on disk, or its failure."""
        mine = self.cells[0] if arm == "ref" else cell
        failure = failure_of(arm, execution.result) or _unclean(arm, execution)
        if failure is not None:
            mine.spool.failure(failure)
            text = f"{mine.row.name}: {failure.kind} at {failure.stage}: {failure.message}"
            self.listener.on_warning(text)
            if failure.kind == "inputs-changed":
                self._fault("inputs-differ", text)
            return
        if not mine.spool.record().witnesses:
            mine.spool.witness(witness_of(arm, execution.result))
        run = Run(pair=number, position=1 if position else 0, arm=arm)
        sample = sample_of(run, execution)
        cell.spool.sample(sample)
        cause = lost_cause(sample.telemetry, self.limits)
        if cause:
            self._disturbed = True
            cell.spool.lost(LostPair(pair=number, arm=arm, cause=cause))
            self.listener.on_warning(f"block {number} is lost: {cause}")

    def task(self, cell: Cell, number: int) -> Task:
        """The timed process of a row; what ran at the levers' sites is read after it."""
        task = task_of(cell.spec, Run(pair=number, position=0, arm=cell.arm))
        if cell.arm == "oracle":
            return task
        seen = [one.lever for one in self.spec.levers]
        return task.model_copy(update={"arguments": {ARGUMENT: seen}})

    def _report(self) -> None:
        record = [cell.spool.record() for cell in self.cells]
        done = sum(len(one.samples) for one in record)
        living = sum(not one.failures for one in record)
        living = 2 * (living - 1) if self.spec.interleaved else living
        planned = max(done, living * self.spec.blocks)
        left_s = self._block_s / max(1, living) * (planned - done) if self._block_s else None
        self.listener.on_sample(done, planned, (), left_s)

    # --- the same work -----------------------------------------------------------------------

    def _compare(self, number: int) -> None:
        """All rows of a block worked on the same inputs and did the same work, or none counts."""
        found = [
            (cell, sample)
            for cell in self.cells
            for sample in cell.spool.record().samples
            if sample.pair == number
        ]
        if not found:
            return
        (first, one), *others = found
        for cell, sample in found:
            self._check_mode(cell, sample)
        for cell, other in others:
            apart = different_work(one, other)
            if apart:
                self._fault("inputs-differ", f"{cell.row.name} against {first.row.name}: {apart}")

    def _check_mode(self, cell: Cell, sample: Sample) -> None:
        """An oracle in a slower mode than its users' would be beaten for the wrong reason."""
        ran = str(sample.telemetry.get(ORACLE_MODE_FACT) or "")
        if sample.arm == "oracle" and ran and self.spec.oracle_mode not in ("", ran):
            text = f"the {cell.row.name} ran {ran} where its users run it {self.spec.oracle_mode}"
            self._fault("oracle-mode", text)


def different_work(one: Sample, other: Sample) -> str:
    """How the work of two samples differs; empty where it is the same."""
    if one.inputs_digest != other.inputs_digest:
        apart = unlike(one.inputs_digest, other.inputs_digest) + overwritten_text(one, other)
        return f"they worked on different inputs ({apart})"
    if one.outputs_count != other.outputs_count and not does_a_part(one, other):
        return f"{other.outputs_count} outputs against {one.outputs_count}"
    for name in WORK_FACTS:
        if one.telemetry.get(name) != other.telemetry.get(name):
            return f"{name} {other.telemetry.get(name)} against {one.telemetry.get(name)}"
    return ""


def _unclean(arm: Arm, execution: Execution) -> ArmFailure | None:
    """A process that left something changed, compiled while timed, or whose ranks disagree."""
    result = execution.result
    if result.disagreements:
        text = f"the ranks disagree: {'; '.join(result.disagreements)}"
        return ArmFailure(arm=arm, kind="unmet", stage="measure", message=text)
    if result.left_changed:
        text = f"left changed: {'; '.join(result.left_changed)}"
        return ArmFailure(arm=arm, kind="not-restored", stage="disable", message=text)
    if result.compilations:
        text = f"{result.compilations} compilations inside the timed part"
        return ArmFailure(arm=arm, kind="unmet", stage="measure", message=text)
    return None
