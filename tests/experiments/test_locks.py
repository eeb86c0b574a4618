from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from experiments import holders, locks
from levers.errors import StoreError

HOLD = """
import sys, time
from pathlib import Path
from experiments import locks
folder, purpose, shared, since = sys.argv[1:]
with locks.device(
    Path(folder), "GPU-1", purpose, now=since, shared=shared == "shared", wait_s=30
):
    print("held", flush=True)
    time.sleep(600)
"""


def started(
    folder: Path, purpose: str = "ab other", how: str = "alone", since: str = "2026-01-01T00:00:00"
) -> subprocess.Popen[bytes]:
    """A process that holds the device as soon as it can."""
    words = [sys.executable, "-c", HOLD, str(folder), purpose, how, since]
    return subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path.cwd())


def holding(*options: Any, **more: Any) -> subprocess.Popen[bytes]:
    """The same, once it holds it."""
    process = started(*options, **more)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def purposes(folder: Path) -> list[str]:
    return [who.purpose for who in holders.holding(locks.device_lock_path(folder, "GPU-1"))]


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
    assert purposes(tmp_path) == [], "a note whose writer is gone names nobody"
    with locks.device(tmp_path, "GPU-1", "ab mine", now="now", wait_s=0):
        assert purposes(tmp_path) == ["ab mine"]
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


# --- a device that is shared ---------------------------------------------------------------------


def shared(folder: Path, number: int) -> subprocess.Popen[bytes]:
    return holding(folder, f"parity {number}", "shared", f"2026-01-0{number}T00:00:00")


def test_what_is_not_timed_shares_a_device_and_a_timing_run_waits_for_the_last(
    tmp_path: Path,
) -> None:
    others = [shared(tmp_path, number) for number in (1, 2, 3)]
    timing = started(tmp_path, "ab timed")
    heard: list[str] = []
    mine = {"now": "now", "wait_s": 0.3, "on_wait": heard.append}
    try:
        assert purposes(tmp_path) == ["parity 1", "parity 2", "parity 3"]
        with (
            pytest.raises(locks.DeviceBusy, match=r"by parity 1 .* and parity 2 .* and parity 3 "),
            locks.device(tmp_path, "GPU-1", "ab mine", **mine),
        ):
            pass
        assert [text.count("(process") for text in heard] == [3]
        end(others.pop(0))
        end(others.pop(0))
        with (
            pytest.raises(locks.DeviceBusy, match=r"held by parity 3 .process"),
            locks.device(tmp_path, "GPU-1", "ab mine", **mine),
        ):
            pass
        assert timing.poll() is None
        end(others.pop())
        assert timing.stdout is not None
        assert timing.stdout.readline() == b"held\n"
        assert purposes(tmp_path) == ["ab timed"]
        assert list((tmp_path / "GPU-1.holders").iterdir()) == [], "what the killed left is cleared"
    finally:
        for process in (*others, timing):
            end(process)


def test_what_shares_a_device_waits_for_a_timing_run_and_names_it(tmp_path: Path) -> None:
    timing = holding(tmp_path, "ab timed")
    parity = started(tmp_path, "parity", "shared")
    try:
        with (
            pytest.raises(locks.DeviceBusy, match=f"held by ab timed .process {timing.pid}"),
            locks.device(tmp_path, "GPU-1", "mine", now="now", shared=True, wait_s=0.3),
        ):
            pass
        assert parity.poll() is None
        end(timing)
        assert parity.stdout is not None
        assert parity.stdout.readline() == b"held\n"
        assert purposes(tmp_path) == ["parity"], "the killed run's note is there and names nobody"
    finally:
        end(timing)
        end(parity)


def test_one_process_may_share_a_device_with_itself(tmp_path: Path) -> None:
    held = {"now": "now", "wait_s": 0.0, "shared": True}
    with (
        locks.devices(tmp_path, ("GPU-1", "GPU-2"), "a", **held),
        locks.devices(tmp_path, ("GPU-1",), "b", **held),
    ):
        assert sorted(purposes(tmp_path)) == ["a", "b"]
    with locks.device(tmp_path, "GPU-1", "c", now="now", wait_s=0):
        assert purposes(tmp_path) == ["c"]
    assert purposes(tmp_path) == []
