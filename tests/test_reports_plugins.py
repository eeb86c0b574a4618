"""Public fault reports about plugins, through the command line as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def levergate(tmp_path: Path):
    def run(*arguments: str, levers: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "cli.py"), *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
            check=False,
            env={
                **os.environ,
                "LEVERGATE_HOME": str(tmp_path / "home"),
                "LEVERGATE_LEVERS": str(levers),
                "COLUMNS": "160",
            },
        )

    return run


# https://github.com/dask/dask/issues/10379
def test_a_lever_with_a_missing_import_is_listed_as_broken_and_harms_nothing(
    levergate, tmp_path: Path
) -> None:
    folder = tmp_path / "levers"
    folder.mkdir()
    (folder / "lost.py").write_text('"""Lost."""\nimport no_such_module\n')
    listed = levergate("list", levers=folder)
    assert listed.returncode == 0
    assert "fa2_nsplits_cap" in listed.stdout
    assert "lost" in listed.stdout
    assert "No module named 'no_such_module'" in listed.stdout
    asked = levergate("ab", "lost", levers=folder)
    assert asked.returncode == 1
    assert "is broken" in asked.stderr


# https://github.com/majiayu000/claude-skill-registry-core/issues/242
def test_a_lever_folder_that_cannot_be_read_is_named(levergate, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    listed = levergate("list", levers=missing)
    assert listed.returncode == 2
    assert f"the lever folder {missing}" in listed.stderr
    assert "Traceback" not in listed.stderr
