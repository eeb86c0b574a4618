"""The blocks of a stack against an executor that starts no process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from experiments.conditions import Limits
from experiments.executor import Execution
from experiments.requests import SilentListener
from experiments.run_record import RunRecord
from experiments.server_process import ServerDied
from experiments.spec import LeverSetting
from experiments.spool import Spool
from experiments.stack.hold import inputs_changed
from experiments.stack.plan import Rows, order, waterfall
from experiments.stack.records import StackSpec
from experiments.stack.stage import Cell, Stage, different_work
from experiments.tasks import Measurement, Task, TaskResult
from experiments.values import Scalar
from levers.policy import ParityClass
from tests.support import evidence_factory, records_factory, runs
from tests.support.stub_workload import RATE, STEP, STUB

LEVERS = tuple(LeverSetting(lever=f"planted_{name}", setting="on") for name in ("fast", "on_top"))


class Machine:
    """Answers after a second of its own clock; remembers what ran and in which order."""

    def __init__(self) -> None:
        self.server_s = 0.0
        self.now = 0.0
        self.servers = 1
        self.ran: list[tuple[int, int]] = []
        self.fails: Callable[[int, int], TaskResult | None] = lambda block, count: None
        self.telemetry: Callable[[int, int], Mapping[str, Scalar]] = lambda block, count: {}
        self.inputs: Callable[[int], str] = lambda count: "same"

    def new_block(self) -> None:
        self.servers += 1

    def clock(self) -> float:
        return self.now

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        count = len(task.levers)
        self.ran.append((task.pair, count))
        self.now += 1.0
        rate = 1000.0 * 1.2**count * random.Random(f"{task.pair} {count}").gauss(1.0, 0.004)
        measured = TaskResult(
            measurement=Measurement(
                values={RATE: rate, STEP: 1e6 / rate},
                inputs_digest=self.inputs(count),
                outputs_count=8,
            ),
            plans={f"planted_fast: {RATE}": f"kernel={count}"},
        )
        result = self.fails(task.pair, count) or measured
        return Execution(result, 1.0, "2026-01-01", self.telemetry(task.pair, count))

    def run_pair(self, first: Task, second: Task) -> tuple[Execution, Execution]:
        return self.run(first), self.run(second)


def spec(**changes: object) -> StackSpec:
    rows = Rows()
    waterfall(LEVERS, rows)
    values: dict[str, object] = {
        "workload": "stub",
        "parameters": {},
        "device": "cpu",
        "seed": 9,
        "levers": LEVERS,
        "rows": rows.all(),
        "blocks": 4,
        "axis": RATE,
        "claims": ParityClass.LOSSLESS,
        "demands": ParityClass.LOSSLESS,
        "levers_digest": "d",
    }
    return StackSpec(**{**values, **changes})  # type: ignore[arg-type]


MakeStage = Callable[..., Stage]


@pytest.fixture
def stage_of(tmp_path: Path) -> Iterator[MakeStage]:
    made: list[Spool] = []

    def make(machine: Machine, of: StackSpec | None = None, *, resume: bool = False) -> Stage:
        of = of or spec()
        for spool in made:
            spool.close()
        made.clear()
        cells = []
        for row in of.rows:
            last = row.levers[-1] if row.levers else LeverSetting(lever="none", setting="off")
            mine = runs.spec(last.lever, last.setting, stack=row.levers[:-1], parameters={})
            head = RunRecord(
                run_id=f"20260101T000000-stack-{row.index}",
                status="running",
                spec=mine,
                plan_digest="p",
                created_at="2026-01-01T00:00:00",
                axes=STUB.axes({}),
                environment=records_factory.environment(),
                kind="stack",
            )
            spool = (
                Spool.resume(tmp_path, head.run_id)[0] if resume else Spool.create(tmp_path, head)
            )
            made.append(spool)
            cells.append(Cell(row, mine, spool))
        return Stage(of, cells, machine, Limits(), SilentListener(), clock=machine.clock)

    yield make
    for spool in made:
        spool.close()


def samples(stage: Stage) -> list[int]:
    return [len(cell.spool.record().samples) for cell in stage.cells]


def test_every_block_holds_each_row_once_in_the_order_of_the_plan(stage_of: MakeStage) -> None:
    machine = Machine()
    stage = stage_of(machine)
    assert stage.go() == "all 4 planned blocks are measured"
    expected = [(block, row) for block in range(4) for row in order(9, block, 3)]
    assert machine.ran == expected
    assert samples(stage) == [4, 4, 4]
    assert machine.servers == 2
    assert not stage.faults


def test_rows_in_turns_run_beside_the_reference_and_who_begins_alternates(
    stage_of: MakeStage,
) -> None:
    machine = Machine()
    stage = stage_of(machine, spec(interleaved=True))
    assert stage.go() == "all 4 planned blocks are measured"
    assert samples(stage) == [0, 8, 8]
    begins = [machine.ran[i][1] == 0 for i in range(0, len(machine.ran), 2)]
    assert begins == [True, True, False, False] * 2
    assert stage.cells[0].evidence().plans == {f"planted_fast: {RATE}": "kernel=0"}


def test_a_stack_that_was_killed_measures_the_cut_block_again_whole(stage_of: MakeStage) -> None:
    machine = Machine()

    def killed(block: int, count: int) -> TaskResult | None:
        if len(machine.ran) == 8:
            raise KeyboardInterrupt
        return None

    machine.fails = killed
    with pytest.raises(KeyboardInterrupt):
        stage_of(machine).go()
    again = Machine()
    stage = stage_of(again, resume=True)
    assert stage.go() == "all 4 planned blocks are measured"
    assert [block for block, _ in again.ran] == [2, 2, 2, 3, 3, 3]
    assert samples(stage) == [4, 4, 4]


def test_a_disturbed_block_is_measured_again_and_too_many_end_the_stack(
    stage_of: MakeStage,
) -> None:
    machine = Machine()
    machine.telemetry = lambda block, count: {"foreign_processes": int(block == 1)}
    stage = stage_of(machine)
    assert stage.go() == "all 4 planned blocks are measured"
    assert {block for block, _ in machine.ran} == {0, 1, 2, 3, 4}
    assert [row for block, row in machine.ran if block == 4] == list(order(9, 1, 3))


def test_a_device_that_is_always_disturbed_gives_no_table(stage_of: MakeStage) -> None:
    machine = Machine()
    machine.telemetry = lambda block, count: {"foreign_processes": 1}
    stage = stage_of(machine)
    assert stage.go() == "too many blocks were lost"
    assert stage.faults[0][0] == "pairs-lost"


def test_a_row_that_fails_is_left_out_and_the_others_go_on(stage_of: MakeStage) -> None:
    machine = Machine()
    broken = TaskResult(failure="out-of-memory", stage="warm-up", message="no room")
    machine.fails = lambda block, count: broken if count == 2 else None
    stage = stage_of(machine)
    assert stage.go() == "all 4 planned blocks are measured"
    assert samples(stage) == [4, 4, 0]
    assert "out-of-memory" in stage.cells[2].evidence().failed
    assert [count for _, count in machine.ran].count(2) == 1


def test_a_row_that_compiles_inside_its_timed_part_has_no_speed(stage_of: MakeStage) -> None:
    machine = Machine()
    stage = stage_of(machine)
    run = machine.run

    def compiling(task: Task, timeout_s: float | None = None) -> Execution:
        execution = run(task)
        late = execution.result.model_copy(update={"compilations": 2 * (len(task.levers) == 1)})
        return Execution(late, 1.0, "2026-01-01", {})

    machine.run = compiling  # type: ignore[method-assign]
    stage.go()
    assert samples(stage) == [4, 0, 4]
    assert "2 compilations" in stage.cells[1].evidence().failed


def test_without_the_row_of_no_lever_there_is_no_table(stage_of: MakeStage) -> None:
    machine = Machine()
    broken = TaskResult(failure="crashed", stage="measure", message="it broke")
    machine.fails = lambda block, count: broken if not count else None
    stage = stage_of(machine)
    stage.go()
    assert stage.faults == (("reference-failed", "crashed at measure: it broke"),)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_row_that_read_other_weights_makes_all_of_them_worthless(
    stage_of: MakeStage, row: int
) -> None:
    machine = Machine()
    other = TaskResult(failure="inputs-changed", stage="warm-up", message="they have changed")
    machine.fails = lambda block, count: other if (block, count) == (1, row) else None
    stage = stage_of(machine)
    assert stage.go() == "a fault ended it"
    ((code, text),) = stage.faults
    assert code == "inputs-differ"
    assert text.endswith("inputs-changed at warm-up: they have changed")
    assert inputs_changed(stage.cells) == (
        ("inputs-differ", f"{stage.cells[row].arm} at warm-up: they have changed"),
    )


def test_rows_that_worked_on_other_inputs_are_confounded(stage_of: MakeStage) -> None:
    machine = Machine()
    machine.inputs = lambda count: f"batch of {count}"
    stage = stage_of(machine)
    assert stage.go() == "a fault ended it"
    assert stage.faults[0][0] == "inputs-differ"
    assert len(machine.ran) == 3


def test_the_budget_ends_between_mirrored_pairs_of_blocks(stage_of: MakeStage) -> None:
    machine = Machine()
    stage = stage_of(machine, spec(blocks=8, budget_s=14.0))
    assert stage.go() == "the budget is spent"
    assert samples(stage) == [4, 4, 4]


def test_processes_that_cannot_be_started_are_a_fault(stage_of: MakeStage) -> None:
    machine = Machine()

    def dies(block: int, count: int) -> TaskResult | None:
        raise ServerDied("no server")

    machine.fails = dies
    stage = stage_of(machine)
    assert stage.go() == "the processes could not be started"
    assert stage.faults == (("environment", "no server"),)


def test_other_work_is_told_by_inputs_outputs_and_stated_flop() -> None:
    one = evidence_factory.sample(0, "ref", {RATE: 1.0}, telemetry={"tokens": 8})
    assert not different_work(one, one)
    other = one.model_copy(update={"telemetry": {"tokens": 2}})
    assert different_work(one, other) == "tokens 2 against 8"
    assert different_work(one, one.model_copy(update={"outputs_count": 3}))


def test_an_oracle_of_some_axes_does_less_work_and_all_of_theirs() -> None:
    series = {"gaps/c1": (1.0,) * 4, "gaps/c8": (1.0,) * 4}
    row = evidence_factory.sample(0, "ref", {RATE: 1.0, "other": 2.0}, raw=series)
    part = {"gaps/c1": series["gaps/c1"]}
    oracle = evidence_factory.sample(0, "oracle", {RATE: 1.0}, raw=part, outputs_count=128)
    assert not different_work(row, oracle)
    shorter = oracle.model_copy(update={"raw": {"gaps/c1": (1.0,) * 3}})
    assert different_work(row, shorter) == "128 outputs against 256"
    candidate = oracle.model_copy(update={"arm": "cand"})
    assert different_work(row, candidate) == "128 outputs against 256"
