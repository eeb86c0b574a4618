"""A driver that is interrupted, with real commands: nothing of it lives on, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import h200_calls as calls
from benchmarks import h200_commands, h200_parity
from benchmarks.h200_commands import Halt, within
from benchmarks.h200_journal import Journal
from benchmarks.h200_training_evidence import unfinished
from benchmarks.h200_training_steps import Step
from tests.support import runs

ROOT = Path(__file__).resolve().parents[2]
MORE = ("--set", "clock=virtual", "--oracle", "none", "--pairs", "6", "--yes")

PROGRAM = """
import sys
from benchmarks import h200_decode, h200_parity, h200_training
from benchmarks.h200_training_steps import Step
name, folder, *more = sys.argv[1:]
driver = {"h200_decode": h200_decode, "h200_training": h200_training}[name]
parts = [Step(f"lever.{i}", ("ab", "planted_hanging", "--cand", "on", *more), 1) for i in "abc"]
step = h200_parity.step_of("levers", parts, 2, 1) if driver is h200_decode else parts[0]
driver.steps = lambda scale: (step, *parts[1:])
h200_training.prepare_sets = lambda state, scale: None
h200_decode.prepare_campaign = lambda driver: None
places = [f"--out={folder}/out", f"--state={folder}/state"]
places += [f"--shared={folder}/shared"] if driver is h200_decode else []
sys.exit(driver.main([*places, "--rehearse", "--limit", "240", "--only", step.name]))
"""
"""A driver whose commands hang in their lever: two side by side, of three, or one."""


def until(found: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What is found, as soon as it is."""
    deadline = time.monotonic() + seconds
    while not (one := found()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)
    return one


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, left = psutil.wait_procs(processes, timeout=5)
    return [one for one in left if one.status() != psutil.STATUS_ZOMBIE]


def hanging(driver: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """All processes of a driver once so many of its commands are in their lever."""
    assert driver.poll() is None, driver.communicate()
    found = below(driver.pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        if sum("86399" in one.cmdline() for one in found) == count:
            return found
    return []


@contextlib.contextmanager
def driving(name: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver, of which nothing is left in the end."""
    variables = {
        **os.environ,
        "LEVERGATE_LOCKS": str(folder / "locks"),
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, str(folder), *MORE],
        cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in (*below(process.pid), psutil.Process(process.pid)):
                one.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
@pytest.mark.parametrize(("name", "count"), [("h200_decode", 2), ("h200_training", 1)])
def test_a_signal_ends_what_runs_notes_it_and_packs(
    name: str, count: int, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.use_stub(monkeypatch)
    with driving(name, tmp_path) as process:
        processes = until(lambda: hanging(process, count))
        process.send_signal(number)
        said, _ = process.communicate(timeout=h200_commands.STOPPING_S + 30)
        left = alive(processes)
    assert left == []
    assert process.returncode == calls.LEFT, said
    assert "Traceback" not in said
    journal = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    begun = [f"lever.{one}" for one in "abc"[:count]]
    assert {one: journal[one]["state"] for one in begun} == dict.fromkeys(begun, "interrupted")
    assert "lever.c" not in journal, "it was not begun"
    if count == 2:
        assert journal["parity.levers"]["text"] == "2 interrupted, 1 open"
    for one in begun:
        assert unfinished(tmp_path / "state" / "homes" / one, "ab"), "the next call goes on with it"
    with tarfile.open(tmp_path / "out" / f"{name}.state.tar.gz") as file:
        assert {"journal.json", f"homes/{begun[0]}/runs"} <= {*file.getnames()}


def driver(folder: Path) -> calls.Driver:
    out, state = folder / "out", folder / "state"
    for one in (out, state / "homes"):
        one.mkdir(parents=True, exist_ok=True)
    return calls.Driver(state, out, time.monotonic() + 600, "cpu", Journal.open(state), "h200")


def test_what_does_not_end_when_it_is_interrupted_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h200_commands, "STOPPING_S", 0.5)
    program = (
        "import signal, subprocess, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '86396'])\n"
        "subprocess.Popen(['sleep', '86396'], start_new_session=True)\n"
        "print('begun', flush=True)\ntime.sleep(60)"
    )
    halt, path, seen = Halt(), tmp_path / "log", []

    def stop() -> None:
        until(lambda: "begun" in path.read_text())
        seen.extend(below(os.getpid()))
        halt.why = "enough"

    path.touch()
    ending = threading.Thread(target=stop)
    ending.start()
    with path.open("a") as log:
        assert within([sys.executable, "-c", program], os.environ, log, 60.0, halt) is None
        ending.join()
        assert sum("86396" in " ".join(one.cmdline()) for one in alive(seen)) == 0
        began = time.monotonic()
        assert within(["sleep", "60"], os.environ, log, 60.0, halt) is None
    assert time.monotonic() - began < 1
    assert len(seen) >= 3


def test_an_error_of_the_driver_ends_its_commands_too_and_what_was_noted_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = driver(tmp_path)
    parts = [Step(f"lever.{name}", ("ab", name), 1) for name in "abc"]
    commands = {"a": ["sleep", "0.1"], "b": ["sleep", "86395"], "c": ["sleep", "86395"]}
    monkeypatch.setattr(
        calls.Driver,
        "attempt",
        lambda self, step, *_: self.run(step, commands[step.name[-1]]),
    )

    def ended(self: calls.Driver, step: Step, code: int | None, took_s: float) -> None:
        self.journal.note(step, state="failed")
        raise OSError("no space left")

    monkeypatch.setattr(calls.Driver, "ended", ended)
    before, began = signal.getsignal(signal.SIGTERM), time.monotonic()
    with pytest.raises(OSError, match="no space"):
        call.carry_out([h200_parity.step_of("levers", parts, 2, 1)])
    assert time.monotonic() - began < 20
    assert not [one for one in below(os.getpid()) if "86395" in one.cmdline()]
    assert json.loads((call.out / "h200.json").read_text()) == {"lever.a": {"state": "failed"}}
    assert signal.getsignal(signal.SIGTERM) is before
