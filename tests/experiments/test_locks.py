from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from experiments import locks
from levers.errors import StoreError

HOLD = """
import sys, time
from pathlib import Path
from experiments import locks
with locks.device(Path(sys.argv[1]), "GPU-1", "ab other", now="2026-01-01T00:00:00"):
    print("held", flush=True)
    time.sleep(600)
"""


def holding(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_held_device_names_its_holder(tmp_path: Path) -> None:
    process = holding(tmp_path)
    heard: list[str] = []
    try:
        with (
            pytest.raises(locks.DeviceBusy, match=f"ab other .process {process.pid}"),
            locks.device(tmp_path, "GPU-1", "ab mine", now="now", wait_s=0.3, on_wait=heard.append),
        ):
            pass
    finally:
        end(process)
    assert len(heard) == 1
    assert "ab other" in heard[0]


def test_the_lock_of_a_killed_holder_is_free_at_once(tmp_path: Path) -> None:
    end(holding(tmp_path))
    assert (tmp_path / "GPU-1.holder").exists()
    with locks.device(tmp_path, "GPU-1", "ab mine", now="now", wait_s=0):
        held = locks.holder(tmp_path / "GPU-1.holder")
        assert held is not None
        assert held.purpose == "ab mine"
    assert not (tmp_path / "GPU-1.holder").exists()


def test_two_devices_are_held_side_by_side(tmp_path: Path) -> None:
    with (
        locks.device(tmp_path, "GPU-1", "a", now="now", wait_s=0),
        locks.device(tmp_path, "GPU-2", "b", now="now", wait_s=0),
    ):
        assert (tmp_path / "GPU-2.holder").exists()


def test_holders_of_one_device_take_turns(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def hold() -> None:
        with locks.device(tmp_path, "cpu-host", "ab", now="now"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_a_lock_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StoreError),
        locks.device(tmp_path / "file" / "locks", "GPU-1", "ab", now="now"),
    ):
        pass
