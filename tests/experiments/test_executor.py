from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from experiments.executor import Executor
from experiments.frozen import FrozenEnvironment
from experiments.server_process import ServerDied
from tests.support import runs

SHELL = {"NVIDIA_TF32_OVERRIDE": "1", "LEVER_PLANTED_SAME": "on"}


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with pytest.MonkeyPatch.context() as patch:
        runs.use_stub(patch)
        frozen = runs.frozen(runs.spec(), environ={**os.environ, **SHELL})
        with Executor(frozen, tmp_path_factory.mktemp("work")) as executor:
            yield executor


def outcome(executor: Executor, lever: str, cand: str = "on", kind: str = "measure") -> str:
    result = executor.run(runs.task(runs.spec(lever, cand), kind)).result
    return f"{result.failure} at {result.stage}: {result.message}"


def test_a_measured_process_measures_and_the_parent_never_imports_torch(
    executor: Executor,
) -> None:
    execution = executor.run(runs.task(runs.spec()))
    measured = execution.result.measurement
    assert execution.result.failure is None
    assert measured is not None
    assert measured.values["stub/step_ms"] == pytest.approx(1.0, rel=0.05)
    assert measured.outputs_count == 8
    assert execution.result.start_s < execution.wall_s < 2
    assert executor.not_forkable == ""


def test_both_arms_and_every_process_work_on_the_same_inputs(executor: Executor) -> None:
    spec = runs.spec()
    digests = {
        executor.run(runs.task(spec, arm=arm)).result.measurement.inputs_digest  # type: ignore[union-attr]
        for arm in ("ref", "cand")
    }
    assert len(digests) == 1


def test_the_witness_of_each_arm_is_read_through_the_subjects_sites(executor: Executor) -> None:
    spec = runs.spec()
    ref = executor.run(runs.task(spec, "witness", arm="ref")).result
    cand = executor.run(runs.task(spec, "witness")).result
    assert ref.plans["stub/items_s"] == "kernel=product x 1"
    assert cand.plans["stub/items_s"] == "kernel=same x 1"
    assert cand.launches["stub.product"] == 2
    assert cand.left_changed == ()


def test_a_lever_that_changes_nothing_has_the_references_plans(executor: Executor) -> None:
    spec = runs.spec("planted_noop")
    ref = executor.run(runs.task(spec, "witness", arm="ref")).result
    cand = executor.run(runs.task(spec, "witness")).result
    assert ref.plans == cand.plans


def test_outputs_come_back(executor: Executor) -> None:
    spec = runs.spec()
    ref = executor.run(runs.task(spec, "outputs", arm="ref")).result.outputs
    cand = executor.run(runs.task(spec, "outputs")).result.outputs
    assert ref is not None
    assert cand is not None
    assert ref.digests == cand.digests


def test_what_a_lever_leaves_changed_is_named(executor: Executor) -> None:
    text = outcome(executor, "planted_leaky")
    assert text.startswith("not-restored at disable")
    assert "os.environ[PLANTED_LEAK]: (unset) -> '1'" in text
    assert "allow_tf32: False -> True" in text
    left = executor.run(runs.task(runs.spec("planted_leaky"), "witness")).result.left_changed
    assert any("PLANTED_LEAK" in name for name in left)


def test_nothing_of_one_arm_reaches_the_next_process(executor: Executor) -> None:
    """An arm that sets flags and variables, or raises after it has: the next process is clean."""
    for lever in ("planted_leaky", "planted_raising"):
        executor.run(runs.task(runs.spec(lever), "witness"))
        clean = executor.run(runs.task(runs.spec("planted_leaky"), "witness")).result
        assert any("PLANTED_LEAK]: (unset)" in name for name in clean.left_changed)
        assert any("allow_tf32: False" in name for name in clean.left_changed)


def test_the_users_switches_do_not_reach_a_measured_process(executor: Executor) -> None:
    assert executor.frozen.removed["LEVER_PLANTED_SAME"] == "on"
    assert "NVIDIA_TF32_OVERRIDE" not in executor.frozen.variables


@pytest.mark.parametrize(
    ("lever", "cand", "expected"),
    [
        ("planted_raising", "on", "crashed at enable: ValueError: enable cannot"),
        ("planted_crashing", "raise", "crashed at warm-up: RuntimeError: the candidate cannot"),
        ("planted_crashing", "exit", "crashed at warm-up: SystemExit: 0"),
        ("planted_crashing", "quit", "crashed at warm-up: ended with exit code 0 and no result"),
        ("planted_crashing", "segfault", "crashed at warm-up: killed by SIGSEGV"),
        ("planted_oom", "on", "out-of-memory at warm-up: RuntimeError"),
        ("planted_nan", "on", "not-finite at measure: FloatingPointError"),
    ],
)
def test_a_failing_arm_is_an_outcome_with_kind_and_stage(
    executor: Executor, lever: str, cand: str, expected: str
) -> None:
    assert outcome(executor, lever, cand).startswith(expected)


def test_a_crash_carries_its_traceback(executor: Executor) -> None:
    raised = executor.run(runs.task(runs.spec("planted_crashing", "raise"))).result
    assert "planted_crashing.py" in raised.traceback
    killed = executor.run(runs.task(runs.spec("planted_crashing", "segfault"))).result
    assert "Segmentation fault" in killed.traceback
    assert "planted_crashing.py" in killed.traceback


def test_a_hanging_arm_is_ended_with_all_that_it_started(executor: Executor) -> None:
    result = executor.run(runs.task(runs.spec("planted_hanging")), timeout_s=1.5).result
    assert result.failure == "hung"
    assert result.stage == "warm-up"
    assert "planted_hanging.py" in result.traceback
    assert not _sleepers()


def _sleepers() -> list[int]:
    """The processes that the hanging lever starts, a session of their own."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline() == ["sleep", "86399"]:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_what_runs_can_be_ended_from_another_thread(executor: Executor) -> None:
    began, ended = time.monotonic(), threading.Event()

    def end() -> None:
        while not ended.wait(0.2):
            executor.interrupt()

    ending = threading.Thread(target=end)
    ending.start()
    try:
        with pytest.raises(ServerDied):
            executor.run(runs.task(runs.spec("planted_hanging")), timeout_s=60.0)
    finally:
        ended.set()
        ending.join()
    assert time.monotonic() - began < 20
    assert outcome(executor, "planted_same").startswith("None")


def test_a_new_block_has_a_new_server(executor: Executor) -> None:
    before = executor.processes()[1]
    executor.new_block()
    assert executor.processes()[1] != before
    assert executor.run(runs.task(runs.spec())).result.failure is None
    assert not psutil.pid_exists(before)


def test_a_server_that_was_killed_is_replaced(executor: Executor) -> None:
    executor.run(runs.task(runs.spec()))
    server = psutil.Process(executor.processes()[1])
    server.kill()
    _until(lambda: server.status() == psutil.STATUS_ZOMBIE)
    assert executor.run(runs.task(runs.spec())).result.failure is None


def test_what_leaves_the_server_unfit_for_a_fork_is_left_to_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starts_a_thread.py").write_text(
        "from threading import Thread\nfrom time import sleep\n"
        "Thread(target=sleep, args=(9,), daemon=True).start()\n"
    )
    runs.use_stub(monkeypatch)
    frozen = runs.frozen(runs.spec(), environ={**os.environ, "PYTHONPATH": str(tmp_path)})
    with Executor(frozen, tmp_path / "work") as executor:
        executor._first_used = ("starts_a_thread",)
        executor.new_block()
        assert executor.run(runs.task(runs.spec())).result.failure is None
        assert executor.not_forkable == ""


def test_on_cuda_what_pytorch_loads_at_first_use_is_loaded_before_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.use_stub(monkeypatch)
    frozen = runs.frozen(runs.spec(), environ=dict(os.environ))
    assert "torch._dynamo" not in Executor(frozen, tmp_path)._preload()
    cuda = replace(frozen, device=SimpleNamespace(is_cuda=True))  # type: ignore[arg-type]
    assert "torch._dynamo" in Executor(cuda, tmp_path)._preload()


def test_a_workload_that_does_not_import_is_said_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.use_stub(monkeypatch)
    frozen = runs.frozen(runs.spec())
    broken = FrozenEnvironment(frozen.variables, frozen.device, "no_such_module:open")
    with (
        Executor(broken, tmp_path) as executor,
        pytest.raises(ServerDied, match="No module named 'no_such_module'"),
    ):
        executor.run(runs.task(runs.spec()))


def test_a_lever_that_acts_at_import_time_gets_its_variables_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.use_stub(monkeypatch)
    spec = runs.spec("planted_at_import")
    with Executor(runs.frozen(spec), tmp_path) as executor:
        result = executor.run(runs.task(spec, "witness")).result
        assert result.plans["stub/items_s"] == "kernel=at-import x 1"
        assert "at import time" in executor.not_forkable
        assert result.left_changed == ()


def test_task_folders_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.use_stub(monkeypatch)
    (tmp_path / "tasks-4194305-abc").mkdir()
    (tmp_path / f"tasks-{os.getppid()}-abc").mkdir()
    with Executor(runs.frozen(runs.spec()), tmp_path):
        left = {folder.name for folder in tmp_path.iterdir()}
    assert "tasks-4194305-abc" not in left
    assert f"tasks-{os.getppid()}-abc" in left


PARENT = """
import os, sys
from pathlib import Path
from experiments.executor import Executor
from tests.support import runs
spec = runs.spec("planted_hanging")
with Executor(runs.frozen(spec), Path(sys.argv[1])) as executor:
    print(*executor.processes(), flush=True)
    assert "torch" not in sys.modules and "mlflow" not in sys.modules
    executor.run(runs.task(spec), timeout_s=600)
"""


def test_nothing_survives_the_death_of_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.use_stub(monkeypatch)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline().split()[1]))
    _until(lambda: bool(_sleepers()))
    family = [server, *server.children(recursive=True)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    psutil.wait_procs(family, timeout=10)
    assert not [process for process in family if process.is_running()]
    assert not _sleepers()


def _until(true: object, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
