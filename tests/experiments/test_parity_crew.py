from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from experiments import pipeline
from experiments.crew import Crew
from experiments.environment import cpu_device
from experiments.parity_crew import IN_DOUBLE, LIGHT_SHARE, ON_A_GPU, sizes_of, usual_jobs
from experiments.requests import AbRequest, SilentListener
from experiments.run_record import RunRecord
from experiments.tasks import Task
from tests.support import runs

GB = 10**9


def asked(kind: str, **arguments: object) -> Task:
    return runs.task(runs.spec(), kind).model_copy(update={"arguments": arguments})


def test_what_runs_the_whole_workload_takes_what_the_workload_needs() -> None:
    size_of = sizes_of(140 * GB, 106 * GB)
    assert size_of(asked("measure", smoke=True)) == 106 * GB
    assert size_of(asked("witness")) == 106 * GB
    assert size_of(asked("outputs", want="digests")) == 106 * GB
    assert size_of(asked("outputs", want="gaps")) == 106 * GB
    assert size_of(asked("outputs", want="truth")) == IN_DOUBLE * 106 * GB
    light = 140 * GB * LIGHT_SHARE
    assert size_of(asked("outputs", want="losses")) == light
    assert size_of(asked("op")) == light
    assert sizes_of(140 * GB, 1 * GB)(asked("measure")) == light


def test_a_cpu_runs_its_parity_processes_one_by_one() -> None:
    assert usual_jobs(cpu_device(), 1) == 1
    assert ON_A_GPU > 1


def verdict(monkeypatch: pytest.MonkeyPatch, home: Path, lever: str, jobs: int | None) -> RunRecord:
    monkeypatch.setenv("LEVERGATE_HOME", str(home))
    request = AbRequest(lever=lever, cand="on", settings={"clock": "virtual"}, parity_jobs=jobs)
    return pipeline.ab(request, SilentListener(), mirror=False)


@pytest.mark.parametrize("lever", ["planted_fast", "planted_wrong"])
def test_a_verdict_does_not_hang_on_how_many_parity_processes_are_at_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lever: str
) -> None:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    one = verdict(monkeypatch, tmp_path / "one", lever, None)
    three = verdict(monkeypatch, tmp_path / "three", lever, 3)
    assert one.parity is not None
    assert three.parity is not None
    seen = [
        [(check.name, check.status, check.passed, check.digest) for check in parity.checks]
        for parity in (one.parity, three.parity)
    ]
    assert seen[0] == seen[1]
    assert one.decision is not None
    assert three.decision is not None
    assert one.decision.outcome == three.decision.outcome
    assert not list((tmp_path / "three").glob("work/tasks-*"))


def test_the_witnesses_are_at_work_beside_each_other_and_what_the_checks_ask_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    told: list[list[str]] = []
    whole = Crew.ahead

    def ahead(crew: Crew, tasks: Iterable[Task]) -> None:
        kinds = list(tasks)
        told.append([task.kind for task in kinds])
        whole(crew, kinds)

    monkeypatch.setattr(Crew, "ahead", ahead)
    run = verdict(monkeypatch, tmp_path / "two", "planted_wrong", 2)
    assert told[0] == ["witness", "witness"]
    assert len(told[1]) > 2
    assert [one.arm for one in run.witnesses] == ["ref", "cand"]
