"""The device tests' script, and the plugin that ends a session in good order."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_tests.sh"

TESTS = """
import time, pytest

def test_one() -> None:
    time.sleep({one})

def test_two() -> None:
    try:
        raise ValueError("the cause\\nin two lines")
    except ValueError as cause:
        raise RuntimeError("it failed") from cause

@pytest.mark.parametrize("n", [1, 2])
def test_three(n: int) -> None:
    pass
"""


def session(folder: Path, *options: str, one: float = 0.0) -> list[str]:
    """The command of a session over four tests, of which the second fails."""
    shutil.copy(ROOT / "tests" / "gpu" / "conftest.py", folder)
    (folder / "test_some.py").write_text(TESTS.format(one=one))
    (folder / "pytest.ini").write_text("[pytest]\n")
    outcome = ("--outcome", str(folder / "found.json"))
    bare = ("env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1")
    pytest = (*bare, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=no")
    return [*pytest, *outcome, *options, str(folder)]


def found(folder: Path) -> dict[str, dict[str, object]]:
    kept: dict[str, dict[str, object]] = json.loads((folder / "found.json").read_text())
    return kept


def test_a_session_names_each_failure_with_its_cause_and_joins_the_groups(tmp_path: Path) -> None:
    for group in ("one", "other"):
        done = subprocess.run(
            session(tmp_path, "--group", group), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stdout
    reason = "RuntimeError: it failed <- ValueError: the cause | in two lines"
    assert f"because test_some.py::test_two: {reason}" in done.stdout
    kept = found(tmp_path)
    assert set(kept) == {"one", "other"}
    assert kept["other"]["ended"] is True
    assert kept["other"]["counts"] == {"passed": 3, "failed": 1}
    assert kept["other"]["failures"] == [{"test": "test_some.py::test_two", "reason": reason}]
    assert kept["other"]["not_run"] == []


def test_a_session_that_is_out_of_time_ends_and_says_what_it_did_not_run(tmp_path: Path) -> None:
    command = session(tmp_path, "--stop-after", "0.05", one=0.1)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
    assert "1 passed" in done.stdout
    assert "no test is begun after 0.05 s" in done.stdout
    assert "not run test_some.py::test_three (2)" in done.stdout
    kept = found(tmp_path)["all"]
    assert kept["counts"] == {"passed": 1}
    assert len(kept["not_run"]) == 3  # type: ignore[arg-type]


def test_an_interrupt_sums_up_though_a_background_process_ignores_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        session(tmp_path, one=60.0),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    limit = time.monotonic() + 15
    while not (tmp_path / "found.json").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=15)
    assert process.returncode == 2, text
    assert "not run test_some.py::test_one (1)" in text
    assert found(tmp_path)["all"]["ended"] is True


def test_every_device_test_is_in_one_group() -> None:
    table = re.search(r"FILES=\((.*?)\n\)", SCRIPT.read_text(), re.DOTALL)
    assert table is not None
    grouped = dict(re.findall(r'\[(\w+)\]="([^"]+)"', table[1]))
    names = [name for group in grouped.values() for name in group.split()]
    there = [one.name for one in (ROOT / "tests" / "gpu").glob("test_*.py")]
    assert sorted(f"test_{name}_gpu.py" for name in names) == sorted(there)
    order = re.search(r'GROUPS_IN_ORDER="(.*)"', SCRIPT.read_text())
    assert order is not None
    assert order[1].split() == [*grouped, "timing"]


def test_the_script_refuses_a_group_that_there_is_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(SCRIPT), "unheard"],
        env=os.environ | {"OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no group 'unheard'; there are: rows products" in done.stderr
