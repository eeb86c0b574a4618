"""Several calls on one machine: a frozen copy, the first variables, lanes and what they leave."""

from __future__ import annotations

import os
import subprocess
import tarfile
import time
from pathlib import Path

import psutil
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class Held:
    """A small project with the scripts, held in a folder whose name has a blank."""

    def __init__(self, folder: Path) -> None:
        self.project, self.hold = folder / "project", folder / "a hold"
        self.out = folder / "the out"
        (self.project / "benchmarks").mkdir(parents=True)
        for name in ("hold.sh", "lanes.sh"):
            script = self.project / "benchmarks" / name
            script.write_bytes((BENCHMARKS / name).read_bytes())
            script.chmod(0o755)
        (self.project / "version").write_text("one\n")

    def started(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        own = {"HOLD": str(self.hold), "OUT": str(self.out), **variables}
        script = str(self.project / "benchmarks" / "hold.sh")
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [script, *words], env={**os.environ, **own}, stdout=pipe, stderr=pipe, text=True
        )

    def ran(self, *words: str, **variables: str) -> tuple[int, str, str]:
        process = self.started(*words, **variables)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def begun(self, process: subprocess.Popen[str]) -> list[psutil.Process]:
        """All below the process, once lane 0 has left a file ``x``."""
        begun = time.monotonic()
        while not (self.hold / "out" / "lane0" / "x").exists() and time.monotonic() - begun < 20:
            time.sleep(0.1)
        return psutil.Process(process.pid).children(recursive=True)

    def lane(self, name: str) -> str:
        """The text that lane 0 has left under that name."""
        with tarfile.open(self.out / "lane0.tar.gz") as archive:
            file = archive.extractfile(f"lane0/{name}")
            assert file is not None
            return file.read().decode()


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path)


def test_later_calls_measure_the_first_copy_with_the_first_variables(held: Held) -> None:
    assert held.ran("begin", MINE="first")[0] == 0
    (held.project / "version").write_text("two\n")
    words = '{ cat version; echo $MINE; } > "$PLACE"/seen; echo done'
    code, out, _ = held.ran("lanes", "30", words, MINE="second")
    assert (code, out) == (0, "lane 0 ended with 0: done\n")
    assert held.lane("seen") == "one\nfirst\n"
    assert (held.out / "lane0.txt").read_text() == "done\n"
    assert held.ran("begin", MINE="third")[0] == 0, "beginning again changes nothing"
    held.ran("lanes", "30", words)
    assert held.lane("seen") == "one\nfirst\n"


def test_a_lane_knows_what_is_left_and_its_failure_is_the_calls(held: Held) -> None:
    held.ran("begin")
    code, _, _ = held.ran("lanes", "30", 'left > "$PLACE"/left; training whole; echo $?; exit 7')
    assert code == 7
    assert 15 < int(held.lane("left")) < 25
    said = (held.out / "lane0.txt").read_text()
    assert "h200_training whole is not begun: it needs 30 s" in said
    assert said.endswith("s are left\n3\n")


def test_a_call_with_fewer_lanes_leaves_nothing_of_an_earlier_one(held: Held) -> None:
    held.ran("begin")
    held.out.mkdir(exist_ok=True)
    for name in ("lane1.txt", "lane1.tar.gz", "lane.sh"):
        (held.out / name).write_text("echo mine")
    held.ran("lanes", "30", str(held.out / "lane.sh"))
    left = sorted(path.name for path in held.out.iterdir())
    assert left == ["lane.sh", "lane0.tar.gz", "lane0.txt"]


def test_the_variables_are_the_owners_alone(held: Held) -> None:
    held.ran("begin")
    assert (held.hold / "variables").stat().st_mode & 0o077 == 0


def test_a_lane_that_ignores_the_end_of_the_call_is_killed(held: Held) -> None:
    held.ran("begin")
    words = "trap '' TERM; echo half > \"$PLACE\"/x; sleep 7653"
    process = held.started("lanes", "60", words, GRACE="1")
    below = held.begun(process)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive


def test_a_file_of_commands_is_a_lane(held: Held, tmp_path: Path) -> None:
    held.ran("begin")
    (tmp_path / "lane.sh").write_text("enough 5 && echo 'a b' > \"$PLACE\"/x\n")
    assert held.ran("lanes", "30", str(tmp_path / "lane.sh"))[0] == 0
    assert held.lane("x") == "a b\n"


def test_what_a_lane_has_left_comes_back_where_the_call_is_ended(held: Held) -> None:
    held.ran("begin")
    process = held.started("lanes", "60", 'echo half > "$PLACE"/x; sleep 7654')
    below = held.begun(process)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert held.lane("x") == "half\n"
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive


@pytest.fixture
def pip(tmp_path: Path) -> str:
    """A search path whose python3 says what it was asked."""
    (tmp_path / "tools").mkdir()
    python = tmp_path / "tools" / "python3"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    return f"{python.parent}:{os.environ['PATH']}"


def written(folder: Path, **wheels: str) -> str:
    """A folder with wheels or parts of them; in the names ``_`` stands for a point."""
    folder.mkdir()
    for name, text in wheels.items():
        (folder / name.replace("_", ".")).write_text(text)
    return str(folder)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_parts_of_a_wheel_are_joined_when_both_are_there(
    held: Held, tmp_path: Path, pip: str, order: tuple[str, str]
) -> None:
    parts = {"a": {"big_whl_p4a": "left "}, "b": {"big_whl_p4b": "right"}}
    first = written(tmp_path / "first", **parts[order[0]], small_whl="small")
    second = written(tmp_path / "second", **parts[order[1]])
    code, out, _ = held.ran("wheels", first, "site", PATH=pip)
    assert (code, "pip" in out) == (0, False)
    assert f"big.whl.p4{order[1]} is not here yet" in out
    assert "whole wheels wait" in out
    code, out, _ = held.ran("wheels", second, "site", PATH=pip)
    assert (code, out.count(".whl")) == (0, 2)
    assert (held.hold / "wheels" / "site" / "big.whl").read_text() == "left right"


def test_a_wheel_in_more_than_two_parts_is_refused(held: Held, tmp_path: Path, pip: str) -> None:
    three = written(tmp_path / "three", big_whl_aa="1", big_whl_ab="2", big_whl_ac="3")
    code, out, err = held.ran("wheels", three, "site", PATH=pip)
    assert (code, out) == (2, "")
    assert "big.whl.ac: a wheel has two parts" in err
    assert not (held.hold / "wheels").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "begin "),
        (("wheels", "x"), "wheels FOLDER site"),
        (("lanes", "30"), "LANE"),
        (("lanes", "30", "true"), "nothing was begun"),
        (("ends",), "begin "),
    ],
)
def test_what_cannot_be_done_is_said(held: Held, words: tuple[str, ...], said: str) -> None:
    code, _, err = held.ran(*words)
    assert code == 2
    assert said in err
