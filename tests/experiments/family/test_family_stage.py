from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments import prepare
from experiments.conditions import Limits
from experiments.environment import cpu_device
from experiments.executor import Execution
from experiments.family.outcome import lines, record_of, winners_request
from experiments.family.rules import looks_of_family
from experiments.family.stage import Member, Stage
from experiments.parity_records import ParityReport
from experiments.requests import AbRequest, SilentListener
from experiments.run_record import RunRecord
from experiments.server_process import ServerDied
from experiments.spool import Spool
from experiments.tasks import Measurement, Task, TaskResult
from experiments.values import Scalar
from experiments.witness_records import Witness
from levers.policy import ParityClass
from tests.support import evidence_factory, records_factory, runs
from tests.support.stub_workload import RATE, STEP, STUB

SPEEDS = {"ref": 1.0, "1": 1.05, "2": 0.97, "3": 0.95, "4": 1.10}


class Machine:
    """Runs no process: each setting has a speed, each task takes a second."""

    def __init__(self, speeds: Mapping[str, float] = SPEEDS, noise: float = 0.004) -> None:
        self.noise = noise
        self.server_s = 0.0
        self.now = 0.0
        self.blocks = 1
        self.ran: list[tuple[int, str]] = []
        self.speeds = speeds
        self.fails: Callable[[int, str], TaskResult | None] = lambda number, arm: None
        self.telemetry: Callable[[int, str], Mapping[str, Scalar]] = lambda number, arm: {}

    def new_block(self) -> None:
        self.blocks += 1

    def clock(self) -> float:
        return self.now

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        assert task.subject is not None
        arm = task.subject.setting if task.arm == "cand" else task.arm
        self.ran.append((task.pair, arm))
        self.now += 1.0
        noise = random.Random(f"{task.pair} {arm}").gauss(1.0, self.noise)
        rate = 100 * self.speeds.get(arm, 1.0) * noise
        measured = TaskResult(
            measurement=Measurement(
                values={RATE: rate, STEP: 1e3 / rate},
                inputs_digest="same",
                outputs_count=8,
                facts={"oracle_mode": "eager"},
            )
        )
        result = self.fails(task.pair, arm) or measured
        return Execution(result, 1.0, "2026-01-01", self.telemetry(task.pair, arm))

    def rounds_of(self, arm: str) -> int:
        return len([1 for _, name in self.ran if name == arm])


@pytest.fixture
def members_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., list[Member]]]:
    runs.use_stub(monkeypatch)
    made: list[Spool] = []

    def make(*settings: str, oracle: str = "none", pairs: int | None = None) -> list[Member]:
        request = AbRequest("planted_several", oracle=oracle, seed=3)
        looks = looks_of_family(pairs)
        found = []
        for setting in settings:
            comparison = prepare.compare(replaced(request, setting), cpu_device())
            spec = comparison.spec.model_copy(update={"looks": looks})
            spool = Spool.create(tmp_path, head(spec, setting))
            made.append(spool)
            for arm, plan in (("ref", "kernel=product"), ("cand", f"kernel={setting}")):
                plans = {RATE: plan, STEP: plan}
                spool.witness(Witness.model_validate({"arm": arm, "plans": plans, "launches": {}}))
            spool.parity(
                ParityReport(
                    checks=(evidence_factory.passed("determinism"),), claimed=ParityClass.LOSSLESS
                )
            )
            comparison = prepare.Comparison(
                spec, comparison.lever, STUB, comparison.device, comparison.plan, ()
            )
            found.append(Member(setting, comparison, spool))
        return found

    yield make
    for spool in made:
        spool.close()


def replaced(request: AbRequest, setting: str) -> AbRequest:
    return AbRequest(request.lever, cand=setting, oracle=request.oracle, seed=request.seed)


def head(spec: Any, setting: str) -> RunRecord:
    return RunRecord(
        run_id=f"20260101T000000-{setting:0>6}",
        status="running",
        kind="family",
        spec=spec,
        plan_digest="d",
        created_at="2026-01-01T00:00:00",
        axes=STUB.axes(spec.parameters),
        targets=STUB.targets(spec.parameters, spec.oracle),
        oracle_mode="eager" if spec.oracle else "",
        environment=records_factory.environment(),
    )


def stage(members: list[Member], machine: Machine, **changes: Any) -> Stage:
    values = {"limits": Limits(), "listener": SilentListener(), "clock": machine.clock, **changes}
    return Stage(members=members, executor=machine, **values)


def test_losers_leave_the_schedule_and_the_best_survivor_wins(members_of) -> None:
    members, machine = members_of("1", "2", "3", "4"), Machine()
    running = stage(members, machine)
    stopped = running.go()
    family = record_of("f", members, stopped, running.rounds, 1.0)
    assert family.winner == "4"
    assert [one.fate for one in family.settings] == ["kept", "dropped", "dropped", "winner"]
    assert [one.decision.outcome for one in family.settings[1:3]] == ["gated-OFF"] * 2
    assert machine.rounds_of("3") < machine.rounds_of("ref") or running.rounds == 6
    assert stopped == "every setting that is left is decided"


def test_the_reference_runs_once_in_each_round_for_all_settings(members_of) -> None:
    members, machine = members_of("1", "4"), Machine({"1": 1.004, "4": 1.004})
    running = stage(members, machine)
    running.go()
    assert machine.rounds_of("ref") == running.rounds
    for member in members:
        samples = member.spool.record().samples
        refs = {s.pair: s for s in samples if s.arm == "ref"}
        cands = {s.pair: s for s in samples if s.arm == "cand"}
        assert len(refs) == len(cands) == running.rounds
        assert all(refs[pair].position != cands[pair].position for pair in refs)
    first, second = (
        {s.pair: s.values for s in member.spool.record().samples if s.arm == "ref"}
        for member in members
    )
    assert first == second


def test_all_runs_of_a_round_are_adjacent_and_a_block_has_a_server_of_its_own(members_of) -> None:
    machine = Machine({"1": 1.004, "2": 1.004, "3": 1.004})
    running = stage(members_of("1", "2", "3"), machine)
    running.go()
    pairs = [pair for pair, _ in machine.ran]
    assert pairs == sorted(pairs)
    assert machine.blocks == -(-running.rounds // 4)


def test_settings_that_stay_open_stop_at_eighteen_rounds(members_of) -> None:
    members = members_of("1", "2")
    running = stage(members, Machine({"1": 1.005, "2": 1.015}, noise=0.03))
    assert running.go() == "every setting that is left is decided"
    assert running.rounds == 18
    readings = [member.reading for member in members]
    assert None not in readings
    assert "inconclusive" in {reading.outcome for reading in readings if reading}


def test_a_setting_that_crashes_in_mid_run_is_dropped_and_the_others_go_on(members_of) -> None:
    members, machine = members_of("1", "2", "4"), Machine()
    crash = TaskResult(failure="crashed", stage="measure", message="boom")
    machine.fails = lambda number, arm: crash if (number, arm) == (2, "2") else None
    stage(members, machine).go()
    assert machine.rounds_of("2") == 3
    assert machine.rounds_of("4") >= 6
    family = record_of("f", members, "", 6, 1.0)
    by_setting = {one.setting: one for one in family.settings}
    assert by_setting["2"].decision.reason == "candidate-crashed"
    assert by_setting["2"].fate == "not-timed"
    assert family.winner == "4"


def test_a_reference_that_fails_leaves_no_setting(members_of) -> None:
    members, machine = members_of("1", "4"), Machine()
    failed = TaskResult(failure="crashed", stage="measure", message="boom")
    machine.fails = lambda number, arm: failed if (number, arm) == (1, "ref") else None
    assert stage(members, machine).go() == "no setting is left"
    family = record_of("f", members, "", 2, 1.0)
    assert {one.decision.reason for one in family.settings} == {"reference-failed"}
    assert family.winner is None
    assert family.outcome == "invalid"
    assert winners_request(AbRequest("planted_several"), family) is None


def test_an_oracle_runs_once_in_each_block_for_all_settings(members_of) -> None:
    members, machine = members_of("1", "4", oracle="plain"), Machine({"1": 1.002, "4": 1.002})
    running = stage(members, machine)
    running.go()
    assert machine.rounds_of("oracle") == machine.rounds_of("oracle-ref") == machine.blocks
    states = [member.spool.record().looks[-1].states[0] for member in members]
    assert all(state.oracle == "plain" and state.ratio is not None for state in states)
    assert states[0] == states[1]


def test_an_oracle_that_fails_is_left_out_and_the_settings_go_on(members_of) -> None:
    members, machine = members_of("1", "3", oracle="plain"), Machine()
    failed = TaskResult(failure="crashed", stage="measure", message="boom")
    machine.fails = lambda number, arm: failed if arm == "oracle" else None
    stage(members, machine).go()
    assert machine.rounds_of("oracle") == 1
    assert machine.rounds_of("1") >= 6


def test_a_disturbed_run_costs_its_round_and_another_is_measured(members_of) -> None:
    members, machine = members_of("1", "4", pairs=6), Machine({"1": 1.003, "4": 1.003})
    machine.telemetry = lambda number, arm: (
        {"throttles": "hw-slowdown"} if (number, arm) == (1, "ref") else {}
    )
    running = stage(members, machine)
    running.go()
    assert running.rounds == 7
    assert all(member.rounds == 6 for member in members)
    assert [one.pair for one in members[0].spool.record().lost] == [1]


def test_a_device_that_loses_round_after_round_ends_the_selection(members_of) -> None:
    members, machine = members_of("1", "4"), Machine()
    machine.telemetry = lambda number, arm: {"throttles": "hw-slowdown"}
    stopped = stage(members, machine).go()
    assert stopped.startswith("the device was not usable")
    family = record_of("f", members, stopped, 4, 1.0)
    assert {one.decision.reason for one in family.settings} == {"throttled"}


def test_a_budget_ends_the_selection_and_the_best_so_far_is_the_winner(members_of) -> None:
    members, machine = members_of("1", "4"), Machine({"1": 1.0, "4": 1.05}, noise=0.03)
    running = stage(members, machine, budget_s=24.5)
    stopped = running.go()
    assert running.rounds == 8
    assert "budget" in stopped
    family = record_of("f", members, stopped, running.rounds, 24.0)
    assert family.winner == "4"
    assert {one.decision.outcome for one in family.settings} == {"inconclusive"}


def test_a_machine_that_starts_no_process_is_named_for_every_setting(members_of) -> None:
    members, machine = members_of("1", "4"), Machine()

    def die(number: int, arm: str) -> TaskResult | None:
        raise ServerDied("no module named torch")

    machine.fails = die
    assert stage(members, machine).go() == "the processes could not be started"
    assert {member.reading.reason for member in members if member.reading} == {"environment"}


def test_the_winners_run_has_its_own_pairs_and_says_how_it_was_chosen(members_of) -> None:
    members, machine = members_of("1", "3"), Machine()
    stopped = stage(members, machine).go()
    family = record_of("f", members, stopped, 6, 1.0)
    asked = winners_request(AbRequest("planted_several", cand="1,3", budget_s=60.0), family)
    assert asked is not None
    assert (asked.cand, asked.budget_s, asked.seed) == ("1", 30.0, family.seed)
    assert asked.selected == lines(family)
    assert "fresh pairs only" in asked.selected[0]
    assert any("3 dropped: gated-OFF" in line for line in asked.selected)
