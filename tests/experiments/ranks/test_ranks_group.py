"""Groups of two and four ranks through the real executor, on the CPU with gloo."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.environment import cpu_device
from experiments.executor import Executor
from experiments.frozen import frozen_environment
from experiments.spec import AbSpec
from experiments.tasks import Task, TaskResult
from levers.policy import GatingPolicy
from tests.support import runs
from tests.support.ranked_workload import DEFAULTS, PEAK, RANKED, STEP_MS, TOK_S, TOKENS

LIMIT_S = 30.0


def spec(ranks: int = 2, cand: str = "on", **parameters: Any) -> AbSpec:
    return AbSpec(
        lever="planted_rank",
        ref="off",
        cand=cand,
        workload="ranked",
        parameters={**DEFAULTS, **parameters, "ranks": ranks},
        device="cpu",
        seed=7,
        policy=GatingPolicy(primaries=(TOK_S,)),
    )


def task(of: AbSpec, kind: str = "measure", **changes: Any) -> Task:
    return runs.task(of, kind, **changes)


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with pytest.MonkeyPatch.context() as patch:
        runs.use_stub(patch)
        patch.setenv("LEVERGATE_WORKLOADS", "ranked=tests.support.ranked_workload:RANKED")
        frozen = frozen_environment(
            spec(),
            cpu_device(),
            RANKED.opener,
            environ=dict(os.environ),
            free_memory_bytes=8 << 30,
            cores=os.sched_getaffinity(0),
        )
        work = tmp_path_factory.mktemp("work")
        with Executor(frozen, work, time_limit_s=LIMIT_S) as executor:
            yield executor
            left = list(work.glob("tasks-*/*.rank*"))
    assert not left, "the files of all ranks are removed with those of their task"


@pytest.fixture(autouse=True)
def _no_orphans(executor: Executor) -> Iterator[None]:
    """Whatever happens to a group, the server has no process below it afterwards."""
    yield
    assert [child.pid for child in psutil.Process(server_of(executor)).children(True)] == []


def server_of(executor: Executor) -> int:
    return executor.processes()[1]


def outcome(executor: Executor, cand: str, ranks: int = 2, limit_s: float | None = None) -> str:
    result = executor.run(task(spec(ranks, cand)), limit_s).result
    return f"{result.failure} at {result.stage}: {result.message}"


def disagreement(executor: Executor, fault: str, kind: str = "measure") -> tuple[str, ...]:
    result = executor.run(task(spec(fault=fault), kind)).result
    assert result.failure is None, result.message
    return result.disagreements


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ranks_train_together_and_agree_to_the_bit(executor: Executor, ranks: int) -> None:
    result = executor.run(task(spec(ranks, optimizer="adamw"))).result
    measured = result.measurement
    assert result.failure is None, result.message
    assert result.disagreements == ()
    assert measured is not None
    assert executor.not_forkable == ""
    assert measured.facts["rank1.barrier_s"] is not None
    assert result.facts["ranks"] == ranks
    assert measured.values[TOK_S] == pytest.approx(
        ranks * TOKENS / (measured.values[STEP_MS] / 1e3)
    )


def test_a_sample_is_the_slowest_ranks_step(executor: Executor) -> None:
    result = executor.run(task(spec(4, "slow-rank"))).result
    measured = result.measurement
    assert measured is not None
    assert measured.values[STEP_MS] > 50
    assert measured.values[STEP_MS] == pytest.approx(1e3 * sorted(measured.raw["step_s"])[1])
    assert len(measured.raw["barrier_s"]) == 3
    peaks = [float(str(measured.facts[f"rank{rank}.{PEAK}"])) for rank in range(4)]
    assert measured.values[PEAK] == max(peaks)
    assert 0 <= float(str(measured.facts["communication_share"])) <= 1


def test_one_rank_and_several_begin_with_the_same_shard_and_weights(executor: Executor) -> None:
    alone = executor.run(task(spec(1))).result.measurement
    again = [executor.run(task(spec(2))).result.measurement for _ in range(2)]
    assert alone is not None
    assert again[0] is not None
    assert again[1] is not None
    assert again[0].inputs_digest == again[1].inputs_digest != alone.inputs_digest
    assert "barrier_s" not in alone.raw


def test_the_witness_of_a_group_is_read_on_all_ranks(executor: Executor) -> None:
    result = executor.run(task(spec(2, "on"), "witness")).result
    assert result.plans == {TOK_S: "plan=on x 1"}
    assert result.disagreements == ()


def test_a_parity_pass_is_one_process(executor: Executor) -> None:
    result = executor.run(task(spec(2), "outputs")).result
    assert result.outputs is not None
    assert "ranks" not in result.facts


def test_an_oracle_takes_no_part_of_the_batch_and_counts_on_all_ranks(executor: Executor) -> None:
    result = executor.run(task(spec(2), implementation="oracle:alone", levers=())).result
    assert result.failure is None, result.message
    assert result.disagreements == ()
    assert result.measurement is not None
    assert result.measurement.values[TOK_S] == 2000.0


@pytest.mark.parametrize(
    ("cand", "expected"),
    [
        ("raise", "crashed at measure: rank 1 of 2: RuntimeError: this rank cannot"),
        ("memory", "out-of-memory at measure: rank 1 of 2: RuntimeError: out of memory"),
        ("exit", "crashed at measure: rank 1 of 2: ended with exit code 7 and no report"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_group_is_ended(
    executor: Executor, cand: str, expected: str
) -> None:
    assert outcome(executor, cand).startswith(expected)


def test_of_four_ranks_the_one_that_failed_is_named_with_its_traceback(executor: Executor) -> None:
    result = executor.run(task(spec(4, "raise"))).result
    assert result.message.startswith("rank 1 of 4: RuntimeError: this rank cannot")
    assert "planted_rank.py" in result.traceback
    assert result.facts["failed_rank"] == 1


def test_a_rank_that_dies_without_a_report_leaves_its_last_words(executor: Executor) -> None:
    assert "last words" in executor.run(task(spec(2, "exit"))).result.traceback


def test_a_rank_that_hangs_is_told_from_those_that_wait_for_it(executor: Executor) -> None:
    waited_s = executor.server_s
    began = time.monotonic()
    text = outcome(executor, "hang", limit_s=8.0)  # the ranks must be at work by then
    took_s = time.monotonic() - began - (executor.server_s - waited_s)
    assert text.startswith("hung at measure: rank 1 of 2 did not end within 8 s in ")
    assert "planted_rank.py" in text
    assert took_s < 14


def ended_from_outside(executor: Executor, victim: str) -> TaskResult:
    """Kill one rank, or the supervisor, while all ranks are at work."""

    def kill() -> None:
        server = psutil.Process(server_of(executor))
        for _ in range(400):
            ranks = [one for group in server.children() for one in group.children()]
            if len(ranks) == 2 and all(one.cpu_times().user > 0.05 for one in ranks):
                break
            time.sleep(0.02)
        time.sleep(0.5)
        group = server.children()[0]
        (group if victim == "supervisor" else group.children()[1]).send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    result = executor.run(task(spec(2, "slow", steps=40))).result
    killer.join()
    return result


def test_a_rank_that_is_killed_from_outside_is_named(executor: Executor) -> None:
    result = ended_from_outside(executor, "rank")
    assert result.failure == "crashed"
    assert result.message == "rank 1 of 2: killed by SIGKILL"


def test_a_supervisor_that_is_killed_takes_its_ranks_with_it(executor: Executor) -> None:
    result = ended_from_outside(executor, "supervisor")
    assert result.failure == "crashed"
    assert "killed by SIGKILL" in result.message


@pytest.mark.parametrize(
    ("fault", "kind", "expected"),
    [
        ("weights", "measure", "weights after the steps: 1.bias: rank 1 has "),
        ("start", "measure", "weights at the start: 0.weight: rank 1 has "),
        ("shard", "measure", "shard of the batch: ranks 0 and 1 have the same, "),
        ("plan", "witness", "plan of train/tok_s: rank 1 has plan=other x 1 where rank 0 has "),
    ],
)
def test_ranks_that_disagree_are_found(
    executor: Executor, fault: str, kind: str, expected: str
) -> None:
    assert disagreement(executor, fault, kind)[0].startswith(expected)


def test_files_of_a_group_lie_beside_its_task(tmp_path: Path) -> None:
    from experiments.ranks.report import RankFiles, rendezvous

    stem = str(tmp_path / "000001")
    files = RankFiles.of(stem, 3)
    assert {one.name for one in (files.report, files.stage, files.log, rendezvous(stem))} == {
        "000001.rank3.report",
        "000001.rank3.stage",
        "000001.rank3.log",
        "000001.rendezvous",
    }
