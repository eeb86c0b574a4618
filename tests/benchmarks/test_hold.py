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
    assert (held.out / "lane0.txt").read_text() == "3\n", "too little is left for a driver"


def test_a_file_of_commands_is_a_lane(held: Held, tmp_path: Path) -> None:
    held.ran("begin")
    (tmp_path / "lane.sh").write_text("enough 5 && echo 'a b' > \"$PLACE\"/x\n")
    assert held.ran("lanes", "30", str(tmp_path / "lane.sh"))[0] == 0
    assert held.lane("x") == "a b\n"


def test_what_a_lane_has_left_comes_back_where_the_call_is_ended(held: Held) -> None:
    held.ran("begin")
    process = held.started("lanes", "60", 'echo half > "$PLACE"/x; sleep 7654')
    begun = time.monotonic()
    while not (held.hold / "out" / "lane0" / "x").exists() and time.monotonic() - begun < 20:
        time.sleep(0.1)
    below = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert held.lane("x") == "half\n"
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive


def test_two_parts_of_a_wheel_are_joined_when_the_second_is_there(
    held: Held, tmp_path: Path
) -> None:
    first, second, tools = tmp_path / "first", tmp_path / "second", tmp_path / "tools"
    for folder in (first, second, tools):
        folder.mkdir()
    (first / "big.whl.p4a").write_text("left ")
    (second / "big.whl.p4b").write_text("right")
    (second / "small.whl").write_text("small")
    (tools / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (tools / "python3").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    code, out, _ = held.ran("wheels", str(first), "site", PATH=path)
    assert (code, "not here yet" in out, "pip" in out) == (0, True, False)
    code, out, _ = held.ran("wheels", str(second), "site", PATH=path)
    assert (code, out.count(".whl")) == (0, 2)
    assert (held.hold / "wheels" / "site" / "big.whl").read_text() == "left right"


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
