"""What the commands that only look import: counted in modules, since seconds depend on the day."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import records_factory as factory

import cli
from experiments import now
from experiments.registry.store import Registry

ROOT = Path(__file__).resolve().parents[2]

NEVER = ("torch", "triton", "mlflow", "alembic", "scipy", "numpy", "matplotlib", "jinja2", "pynvml")
"""Not one of these is needed to print a stored run or the levers."""

MOST_OF_OURS = 46
"""Modules of levergate that ``list`` or ``show`` load beside the levers; of two hundred.

The packages that hold them are not counted: each is one docstring.
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("startup")
    with Registry.open(folder / "registry.db") as registry:
        registry.save(factory.default_on())
        registry.save(factory.parity_failed().model_copy(update={"run_id": "other"}))
    return folder


def imported(home: Path, *words: str) -> set[str]:
    """The modules in a process after the command; it must end with 0."""
    code = (
        "import sys, cli\n"
        f"assert cli.main({list(words)!r}) == 0\n"
        "sys.stderr.write('\\n'.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        env={**os.environ, "LEVERGATE_HOME": str(home)},
    )
    return set(done.stderr.splitlines())


@pytest.mark.parametrize("words", [("list",), ("show", "other"), ("history",)])
def test_looking_at_what_is_stored_loads_nothing_heavy(home: Path, words: tuple[str, ...]) -> None:
    loaded = imported(home, *words)
    assert "sqlalchemy" in loaded
    assert not loaded & set(NEVER)
    assert "sqlalchemy.orm" not in loaded
    ours = {name for name in loaded if name.startswith("experiments.")}
    ours -= {name.rpartition(".")[0] for name in ours}
    assert len(ours) <= MOST_OF_OURS, sorted(ours)


def test_a_command_loads_no_other_commands_module(home: Path) -> None:
    loaded = {name for name in imported(home, "list") if name.startswith("experiments.commands.")}
    assert loaded == {f"experiments.commands.{name}" for name in ("look", "options", "output")}


def test_a_run_is_shown_without_the_records_of_stacks_and_selections(home: Path) -> None:
    records = {"experiments.stack.records", "experiments.family.records"}
    assert not records & imported(home, "show", "other")


def test_what_stands_beside_a_run_asks_for_no_lever_of_another_workload(home: Path) -> None:
    elsewhere = factory.default_on()
    spec = elsewhere.spec.model_copy(
        update={"lever": "segment_sum_broadcast", "cand": "on", "workload": "slat_flow"}
    )
    with Registry.open(home / "registry.db") as registry:
        registry.save(elsewhere.model_copy(update={"run_id": "flow", "spec": spec}))
        assert registry.levers() == {"fa2_nsplits_cap", "segment_sum_broadcast"}
        assert registry.levers(beside="flow") == {"segment_sum_broadcast"}
        whole, some = now.current(registry), now.beside(registry, "flow")
        assert registry.standing("flow", some) == registry.standing("flow", whole)


def test_the_process_looks_for_garbage_seldom_and_a_caller_in_python_keeps_its_own_pace(
    home: Path,
) -> None:
    code = "import gc, sys, cli; sys.argv = ['levergate', 'list']; {}; print(gc.get_threshold()[0])"
    environment = {**os.environ, "LEVERGATE_HOME": str(home)}
    found = [
        subprocess.run(
            [sys.executable, "-c", code.format(call)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
            env=environment,
        ).stdout.splitlines()[-1]
        for call in ("cli.main()", "cli.main(['list'])")
    ]
    assert found == [str(cli.GARBAGE_FROM), "700"]


def test_a_list_builds_no_record_of_a_run(home: Path) -> None:
    assert "experiments.run_record" not in imported(home, "list")
