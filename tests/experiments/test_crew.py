from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import pytest

from experiments.crew import Crew
from experiments.executor import Execution
from experiments.server_process import ServerDied
from experiments.tasks import Outputs, Task, TaskResult


def task(name: str, **arguments: object) -> Task:
    return Task(
        kind="outputs",
        arm="ref",
        workload="fake",
        parameters={},
        device="cpu",
        seed=0,
        arguments={"name": name, **arguments},
    )


@dataclass
class Bench:
    """What the hands of a test share: what runs, what ran, and how a task behaves."""

    does: Callable[[Task, Bench], TaskResult]
    running: set[str] = field(default_factory=set)
    together: list[frozenset[str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class FakeHand:
    """Runs a task in the calling thread."""

    bench: Bench
    left: bool = False

    def __enter__(self) -> FakeHand:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.left = True

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        name, bench = str(task.arguments["name"]), self.bench
        with bench.lock:
            bench.running.add(name)
            bench.together.append(frozenset(bench.running))
            bench.order.append(name)
        try:
            return Execution(bench.does(task, bench), 0.0, "")
        finally:
            with bench.lock:
                bench.running.discard(name)

    def interrupt(self) -> None:
        self.bench.gate.set()


def answer(task: Task, bench: Bench) -> TaskResult:
    return TaskResult(outputs=Outputs(inputs_digest=str(task.arguments["name"])))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def name_of(result: TaskResult) -> str:
    assert result.outputs is not None
    return result.outputs.inputs_digest


def crew(bench: Bench, count: int, size: float = 0.0, room: float = 1.0) -> Crew:
    return Crew([FakeHand(bench) for _ in range(count)], lambda _: size, room)


def test_what_was_started_ahead_answers_one_call_each() -> None:
    bench = Bench(answer)
    with crew(bench, 2) as run:
        run.ahead([task("a"), task("b")])
        until(lambda: bench.order.count("a") + bench.order.count("b") == 2)
        assert name_of(run(task("b"))) == "b"
        assert name_of(run(task("a"))) == "a"
        assert name_of(run(task("a"))) == "a"
    assert sorted(bench.order) == ["a", "a", "b"]


def test_tasks_run_beside_each_other_and_what_is_asked_for_comes_first() -> None:
    def does(task: Task, bench: Bench) -> TaskResult:
        if task.arguments["name"] in ("a", "b"):
            bench.gate.wait(5.0)
        return answer(task, bench)

    bench = Bench(does)
    with crew(bench, 2) as run:
        run.ahead([task("a"), task("b"), task("c"), task("d")])
        until(lambda: len(bench.running) == 2)
        asked = threading.Thread(target=run, args=(task("d"),))
        asked.start()
        until(lambda: any(job.awaited for job in run._jobs))
        bench.gate.set()
        asked.join()
        until(lambda: len(bench.order) == 4)
    assert frozenset({"a", "b"}) in bench.together
    assert bench.order.index("d") < bench.order.index("c")


def test_what_does_not_fit_beside_the_others_waits() -> None:
    bench = Bench(answer)
    with crew(bench, 4, size=0.6) as run:
        run.ahead([task(name) for name in "abcd"])
        for name in "abcd":
            run(task(name))
    assert max(map(len, bench.together)) == 1


def test_a_task_larger_than_the_room_runs_by_itself() -> None:
    bench = Bench(answer)
    with crew(bench, 2, size=7.0) as run:
        assert name_of(run(task("a"))) == "a"


def test_a_failure_beside_others_is_run_again_alone() -> None:
    def does(task: Task, bench: Bench) -> TaskResult:
        if task.arguments["name"] == "slow":
            bench.gate.wait(5.0)
        if task.arguments["name"] == "hungry" and "slow" in bench.running:
            return TaskResult(failure="out-of-memory", stage="measure")
        return answer(task, bench)

    bench = Bench(does)
    with crew(bench, 2) as run:
        run.ahead([task("slow")])
        until(lambda: "slow" in bench.running)
        asked: list[TaskResult] = []
        asking = threading.Thread(target=lambda: asked.append(run(task("hungry"))))
        asking.start()
        until(lambda: any(job.alone for job in run._jobs))
        run.ahead([task("later")])
        bench.gate.set()
        asking.join()
        run(task("later"))
    assert name_of(asked[0]) == "hungry"
    assert bench.order.count("hungry") == 2
    assert frozenset({"hungry"}) in bench.together
    assert not any({"hungry", "later"} <= names for names in bench.together)


def test_a_failure_alone_counts_at_once() -> None:
    bench = Bench(lambda task, bench: TaskResult(failure="crashed", stage="load"))
    with crew(bench, 3) as run:
        assert run(task("a")).failure == "crashed"
    assert bench.order == ["a"]


def test_a_server_that_dies_is_the_callers_to_hear() -> None:
    def does(task: Task, bench: Bench) -> TaskResult:
        raise ServerDied("ended")

    with crew(Bench(does), 1) as run, pytest.raises(ServerDied, match="ended"):
        run(task("a"))


def test_what_a_thread_cannot_do_is_the_callers_to_hear_and_keeps_nobody_waiting() -> None:
    def does(task: Task, bench: Bench) -> TaskResult:
        if task.arguments["name"] == "a":
            raise OSError(28, "No space left on device")
        return answer(task, bench)

    with crew(Bench(does), 2) as run:
        run.ahead([task("a"), task("b")])
        with pytest.raises(OSError, match="No space left"):
            run(task("a"))
        assert name_of(run(task("b"))) == "b"


def test_what_nobody_asked_for_is_ended_at_the_end() -> None:
    def does(task: Task, bench: Bench) -> TaskResult:
        bench.gate.wait(60.0)
        raise ServerDied("its server was told to end")

    bench = Bench(does)
    hands = [FakeHand(bench) for _ in range(2)]
    began = time.monotonic()
    with Crew(hands, lambda _: 0.0) as run:
        run.ahead([task("a"), task("b"), task("c")])
        until(lambda: len(bench.running) == 2)
    assert time.monotonic() - began < 30.0
    assert all(hand.left for hand in hands)
    assert "c" not in bench.order
