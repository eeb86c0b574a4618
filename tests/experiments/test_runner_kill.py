"""``kill -9`` at random moments, then ``--resume``: nothing lost, nothing counted twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.spec import AbSpec
from experiments.spool_reader import load
from tests.support import runs
from tests.support.measure_stub import QUICK, REAL, RUN_ID, plan_of

SCRIPT = Path(__file__).parents[1] / "support" / "measure_stub.py"


def measuring(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", str(SCRIPT), str(folder), *options],
        stdout=subprocess.PIPE,
        text=True,
    )


def killed_after(folder: Path, samples: int, how: signal.Signals, *options: str) -> int:
    """Kill the run once it has reported this many samples; returns how many it had reported."""
    process = measuring(folder, *options)
    assert process.stdout is not None
    reported = 0
    for line in process.stdout:
        if not line.strip().isdigit():
            break
        reported = int(line)
        samples -= 1
        if samples <= 0:
            process.send_signal(how)
    process.wait()
    process.stdout.close()
    return reported


def ended(folder: Path, *options: str) -> str:
    process = measuring(folder, *options)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return text.split()[-1]


def check_whole(folder: Path, spec: AbSpec = QUICK) -> None:
    """Every run of the plan has exactly one sample."""
    record = load(folder, RUN_ID).record
    have = sorted((sample.pair, sample.arm, sample.position) for sample in record.samples)
    assert have == sorted((run.pair, run.arm, run.position) for run in plan_of(spec).runs)


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.use_stub(monkeypatch)
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", root)


def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path) -> None:
    random.seed(11)
    for _ in range(4):
        reported = killed_after(tmp_path, random.randint(1, 7), signal.SIGKILL)
        on_disk = len(load(tmp_path, RUN_ID).record.samples)
        assert on_disk >= reported, "a sample that was reported is on disk"
    assert ended(tmp_path) == "decided"
    check_whole(tmp_path)


def test_a_terminated_run_says_that_it_was_interrupted_and_goes_on(tmp_path: Path) -> None:
    process = measuring(tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    text = process.stdout.read()
    process.stdout.close()
    assert process.wait() == 0
    assert text.split()[-1] == "interrupted"
    assert load(tmp_path, RUN_ID).record.status == "interrupted"
    assert ended(tmp_path) == "decided"
    check_whole(tmp_path)


def test_a_killed_run_through_the_fork_server_goes_on(tmp_path: Path) -> None:
    killed_after(tmp_path, 5, signal.SIGKILL, "--real")
    assert ended(tmp_path, "--real") == "decided"
    check_whole(tmp_path, REAL)
