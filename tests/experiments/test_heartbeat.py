from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from support import records_factory as factory

from experiments import heartbeat, run_setup
from experiments.environment import find_device
from experiments.home import Home
from experiments.prepare import compare
from experiments.requests import AbRequest, SilentListener
from experiments.tasks import Task, TaskResult
from levers import catalog
from levers.base import compile_seconds


class Heard(SilentListener):
    """Keeps what it hears; the first line of progress opens ``spoke``."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.estimate_s = 0.0
        self.spoke = threading.Event()

    def on_progress(self, text: str) -> None:
        self.lines.append(text)
        self.spoke.set()

    def on_estimate(self, seconds: float, pairs: int) -> None:
        self.estimate_s = seconds


def task(arm: str = "cand") -> Task:
    spec = factory.spec()
    return Task(
        kind="op",
        arm=arm,
        workload=spec.workload,
        parameters=spec.parameters,
        device="cpu",
        seed=1,
    )


def test_work_that_takes_long_says_which_process_it_is_and_how_long_it_runs() -> None:
    listener = Heard()

    class Slow:
        def run(self, task: Task, timeout_s: float | None = None) -> SimpleNamespace:
            assert listener.spoke.wait(10), "nothing was heard of a process that works"
            return SimpleNamespace(result=TaskResult(facts={"done": 1}))

    with heartbeat.heard(listener, "op of the candidate", every_s=0.01):
        found = Slow().run(task())
    assert found.result.facts == {"done": 1}
    assert listener.lines[0].startswith("op of the candidate: ")
    assert listener.lines[0].endswith(" so far")


def test_work_that_is_soon_done_says_nothing_and_leaves_no_thread() -> None:
    listener = Heard()
    executor = SimpleNamespace(run=lambda task: SimpleNamespace(result=TaskResult(facts={"n": 2})))
    before = threading.active_count()
    assert heartbeat.running(executor, listener)(task("ref")).facts == {"n": 2}
    assert listener.lines == []
    assert threading.active_count() == before


def test_an_error_inside_ends_the_heartbeat() -> None:
    listener, before = Heard(), threading.active_count()
    with pytest.raises(KeyboardInterrupt), heartbeat.heard(listener, "x", every_s=0.01):
        raise KeyboardInterrupt
    assert threading.active_count() == before


def test_a_lever_that_compiles_is_announced_and_its_time_is_in_the_estimate(tmp_path) -> None:
    device, listener = find_device("cpu"), Heard()
    home = Home(tmp_path, tmp_path / "locks")
    compiled = compare(AbRequest("compile_slat_flow", workload="slat_flow", cand="on"), device)
    run_setup.check_room(compiled, home, listener)
    with_it = listener.estimate_s
    plain = compare(AbRequest("segment_sum_broadcast", workload="slat_flow"), device)
    run_setup.check_room(plain, home, listener)
    assert with_it - listener.estimate_s == pytest.approx(
        heartbeat.COLD_PASSES * compile_seconds(compiled.lever)
    )
    heartbeat.say_compilation(listener, compiled.lever)
    heartbeat.say_compilation(listener, plain.lever)
    (line,) = listener.lines
    assert "compile_slat_flow compiles first: about 1 min" in line


def test_only_levers_that_say_so_compile() -> None:
    found = {
        entry.name for entry in catalog.listed() if entry.lever and compile_seconds(entry.lever)
    }
    assert {"compile_slat_flow", "compile_ss_flow"} <= found
    assert "segment_sum_broadcast" not in found
