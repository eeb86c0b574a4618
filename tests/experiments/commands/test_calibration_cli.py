from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments.calibration import run as calibrating
from experiments.calibration import store as calibration_store
from experiments.calibration.run import Uncalibrated
from experiments.environment import cpu_device, describe
from experiments.registry.store import Registry
from tests.support import calibration_factory as factory
from tests.support import runs
from tests.support.stub_workload import RATE

PLAN = ["plan", "planted_fast", "--effect", "3%", "--set", "clock=virtual"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def calibrated(home: Path) -> None:
    here = describe(cpu_device(), {}, {}, {})
    with Registry.open(home / "registry.db") as registry:
        calibration_store.save(registry.store, factory.calibration(16, environment=here))


def test_plan_answers_from_the_last_calibration(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrated(home)
    assert cli.main([*PLAN, "--json"]) == 0
    found = answer(capsys)
    assert (found["command"], found["lever"], found["on"]) == ("plan", "planted_fast", [RATE])
    assert [look["pairs"] for look in found["looks"]] == [6, 9, 13, 18, 25, 40]
    assert cli.main(PLAN) == 0
    assert "pairs" in capsys.readouterr().out


def test_plan_without_noise_names_the_cure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(PLAN) == 2
    assert "levergate calibrate stub --set clock=virtual" in capsys.readouterr().err


def test_an_effect_that_is_no_percentage_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["plan", "planted_fast", "--effect", "3"]) == 2
    assert "write 1%" in capsys.readouterr().err


def test_calibrate_prints_what_was_measured_and_stores_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = describe(cpu_device(), {}, {}, {})
    measured = factory.calibration(12, environment=here)
    monkeypatch.setattr(calibrating, "run", lambda *_: measured)
    assert cli.main(["calibrate", "stub", "--json"]) == 0
    assert answer(capsys)["calibration"]["calibration_id"] == measured.calibration_id
    assert cli.main(["calibrate", "stub"]) == 0
    assert "false verdicts" in capsys.readouterr().out
    assert cli.main([*PLAN, "--json"]) == 0
    assert measured.calibration_id in answer(capsys)["source"]


def test_a_machine_that_gives_too_few_pairs_exits_as_invalid(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise Uncalibrated("3 valid pairs; the device stayed busy", cure="free it")

    monkeypatch.setattr(calibrating, "run", fail)
    assert cli.main(["calibrate", "stub", "--json"]) == 4
    shown = capsys.readouterr()
    assert json.loads(shown.out)["calibration"] is None
    assert "stayed busy; free it" in shown.err


def test_too_few_pairs_asked_for_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["calibrate", "stub", "--pairs", "4"]) == 2
    assert "--pairs 12" in capsys.readouterr().err


def test_a_plan_that_stands_is_not_lengthened(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ab", "planted_fast", "--cand", "on", "--resume", "nothing", "--pairs", "60"]
    assert cli.main(arguments) == 2
    assert "no run 'nothing'" in capsys.readouterr().err
