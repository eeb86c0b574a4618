"""Commands side by side, each with a GPU and cores of its own."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "lanes.sh"
CORES = len(os.sched_getaffinity(0))


def ran(out: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "OUT": str(out)}
    return subprocess.run(
        [str(SCRIPT), *commands], env=variables, capture_output=True, text=True, timeout=30
    )


@pytest.mark.skipif(CORES < 2, reason="two lanes need two cores")
def test_each_lane_sees_its_gpu_and_has_cores_that_no_other_has(tmp_path: Path) -> None:
    said = "echo $CUDA_VISIBLE_DEVICES; taskset -cp $$"
    done = ran(tmp_path, said, said)
    assert (done.returncode, done.stderr) == (0, "")
    texts = [(tmp_path / f"lane{lane}.txt").read_text().split("\n") for lane in range(2)]
    assert [lines[0] for lines in texts] == ["0", "1"]
    cores = [lines[1].rpartition(": ")[2] for lines in texts]
    assert cores[0] != cores[1]


@pytest.mark.skipif(CORES < 2, reason="two lanes need two cores")
def test_the_worst_exit_code_is_the_scripts_and_no_lane_is_cut_short(tmp_path: Path) -> None:
    done = ran(tmp_path, "echo early; exit 3", "sleep 0.3; echo late")
    assert done.returncode == 3
    assert "lane 0 ended with 3: early" in done.stdout
    assert "lane 1 ended with 0: late" in done.stdout


def test_more_lanes_than_cores_are_refused(tmp_path: Path) -> None:
    done = ran(tmp_path, *["true"] * (CORES + 1))
    assert (done.returncode, done.stderr.split()[:2]) == (2, [str(CORES + 1), "lanes"])


def test_lanes_take_the_gpus_that_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert ran(tmp_path, "echo $CUDA_VISIBLE_DEVICES").stdout == "lane 0 ended with 0: 6\n"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")
    if CORES > 1:
        assert "2 lanes need 2 GPUs" in ran(tmp_path, "true", "true").stderr


def ended(out: Path, command: str) -> float:
    """Seconds that the script takes to end once it is ended, with all below it, in a lane."""
    variables = {**os.environ, "OUT": str(out), "GRACE": "2"}
    process = subprocess.Popen([str(SCRIPT), f"{command}; sleep 8765"], env=variables)
    text = out / "lane0.txt"
    for _ in range(200):
        if text.exists() and text.read_text():
            break
        time.sleep(0.05)
    below = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    process.terminate()
    assert process.wait(20) == 143
    took = time.monotonic() - began
    _, alive = psutil.wait_procs(below, timeout=2)
    assert below
    assert not alive
    return took


def test_ending_the_script_ends_its_lanes_at_once(tmp_path: Path) -> None:
    assert ended(tmp_path, "echo begun") < 2


def test_a_lane_that_does_not_end_when_it_is_told_to_is_killed(tmp_path: Path) -> None:
    assert ended(tmp_path, "trap '' TERM; echo begun") >= 2
