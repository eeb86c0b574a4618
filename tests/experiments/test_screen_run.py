"""A screen and a selection through real processes, on the stub workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments.conditions import Limits
from experiments.family.records import FamilyRecord, SettingResult
from experiments.records import Decision, Outcome
from experiments.screen_records import ScreenRecord
from tests.support import runs

NO_VERDICT = "no verdict"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    # A busy machine may cost a pair; how is tested elsewhere, and these tests share theirs.
    monkeypatch.setattr("experiments.sitting.limits_for", lambda *_: Limits())
    return tmp_path / "home"


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_screen_compares_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ab", "fa2_nsplits_cap", "--cand", "1..3", "--screen", "--tokens-on", "shipped"]
    assert cli.main(words) == 2
    assert "leave out --tokens-on to screen" in capsys.readouterr().err


def test_a_screen_orders_the_settings_and_says_everywhere_that_it_is_no_verdict(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ab", "planted_several", "--cand", "2..6,raises,same", "--screen"]
    options = ["--set", "clock=virtual", "--json", "--yes"]
    assert cli.main([*words, *options]) == 3
    answer = told(capsys)
    assert answer["outcome"] is None
    assert NO_VERDICT in answer["label"]
    screen = ScreenRecord.model_validate(answer["screen"])
    settings = [row.setting for row in screen.rows]
    assert settings[0] == "4"
    assert settings[-1] == "raises"
    assert "this setting cannot" in screen.rows[-1].failure
    assert [row.setting for row in screen.rows if row.same_plan] == ["same"]
    assert screen.rounds == 6
    best = screen.rows[0].effect("stub/items_s")
    assert best is not None
    assert best.lowest <= best.mean <= best.highest
    assert best.mean == pytest.approx(0.105, abs=0.01)
    (stored,) = (home / "screens").glob("*.json")
    assert ScreenRecord.model_validate_json(stored.read_bytes()) == screen
    assert NO_VERDICT in stored.with_suffix(".md").read_text()


def test_a_screen_leaves_no_run_and_no_default_state(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ab", "planted_several", "--cand", "4", "--screen", "--set", "clock=virtual"]
    assert cli.main([*words, "--yes"]) == 3
    assert NO_VERDICT in capsys.readouterr().out
    assert not list((home / "runs").iterdir())
    assert cli.main(["list", "--json"]) == 0
    mine = [row for row in told(capsys)["levers"] if row["name"] == "planted_several"]
    assert not mine[0]["states"]


def test_a_screen_keeps_the_levers_that_are_on_in_both_arms(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ab", "planted_on_top", "--cand", "on", "--screen", "--with", "planted_fast=on"]
    assert cli.main([*words, "--set", "clock=virtual", "--json", "--yes"]) == 3
    assert told(capsys)["screen"]["beside"] == [{"lever": "planted_fast", "setting": "on"}]
    (stored,) = (home / "screens").glob("*.md")
    assert "on in both arms: planted_fast=on" in stored.read_text()


def test_a_setting_that_ends_the_process_ends_the_screen_and_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ab", "planted_several", "--cand", "4,ends", "--screen", "--json", "--yes"]
    assert cli.main(words) == 4
    assert "planted_several=ends" in told(capsys)["screen"]["failure"]


def test_a_setting_that_leaks_into_the_later_ones_is_said(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ab", "planted_leaky", "--cand", "on", "--screen", "--set", "clock=virtual", "--yes"]
    assert cli.main(words) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "SUSPECT: a setting left changed" in shown
    assert "PLANTED_LEAK" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["planted_several", "--cand", "4,off"], "is the reference"),
        (["planted_several", "--cand", "4,17"], "out of range"),
        (["planted_several", "--cand", "4,,5"], "empty part"),
        (["planted_several", "--cand", "6..4"], "does not rise"),
        (["planted_several", "--cand", "4", "--screen", "--expect", "terminal"], "no verdict"),
        (["planted_several", "--cand", "4,absent", "--screen"], "this machine has none"),
        (["planted_at_import", "--cand", "on", "--screen"], "at import time"),
    ],
)
def test_a_request_that_cannot_be_run_measures_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(["ab", *words, "--yes"]) == 2
    assert said in capsys.readouterr().err
    assert not list((home / "runs").iterdir() if (home / "runs").exists() else ())
    assert not (home / "families").exists()


def result(setting: str, outcome: str, reason: str) -> SettingResult:
    decision = Decision(outcome=Outcome(outcome), reason=reason)
    return SettingResult(
        setting=setting, fate="dropped", decision=decision, run_id=setting, rounds=6
    )


@pytest.mark.parametrize(
    ("readings", "outcome"),
    [
        ((("gated-OFF", "slower"), ("terminal", "not-worth-keeping")), "terminal"),
        ((("gated-OFF", "slower"), ("invalid", "unmet")), "gated-OFF"),
        ((("gated-OFF", "slower"), ("invalid", "not-engaged")), "gated-OFF"),
        ((("gated-OFF", "slower"), ("invalid", "device-busy")), "invalid"),
        ((("invalid", "unmet"), ("invalid", "not-engaged")), "invalid"),
    ],
)
def test_where_no_setting_is_left_the_answer_is_a_verdict_only_if_each_that_ran_has_one(
    readings: tuple[tuple[str, str], ...], outcome: str
) -> None:
    family = FamilyRecord(
        family_id="f",
        created_at="2026-01-01",
        lever="x",
        ref="off",
        workload="stub",
        device="cpu",
        seed=1,
        looks=(6,),
        rounds=6,
        axes=(),
        primaries=(),
        settings=tuple(result(str(i), *reading) for i, reading in enumerate(readings)),
        stopped="no setting is left",
    )
    assert family.outcome == outcome


@pytest.mark.slow
def test_of_several_settings_the_winner_gets_the_verdict_and_each_is_recorded(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ab", "planted_several", "--cand", "2,4,raises,same,absent"]
    options = ["--set", "clock=virtual", "--oracle", "none", "--pairs", "6", "--json", "--yes"]
    assert cli.main([*words, *options]) == 0
    answer = told(capsys)
    assert answer["outcome"] == "default-ON"
    assert answer["record"]["spec"]["cand"] == "4"
    assert NO_VERDICT in answer["selection"].pop("label")
    family = FamilyRecord.model_validate(answer["selection"])
    assert family.winner == "4"
    assert family.winner_run == answer["run_id"]
    assert {one.setting: one.decision.reason for one in family.settings if one.score is None} == {
        "raises": "candidate-crashed",
        "same": "not-engaged",
        "absent": "unmet",
    }
    assert any("raises not-timed" in text for text in answer["record"]["warnings"])
    (folder,) = (home / "families").iterdir()
    stored = FamilyRecord.model_validate_json((folder / "family.json").read_bytes())
    assert stored == family
    assert NO_VERDICT in (folder / "family.md").read_text()
    kinds = {
        json.loads((folder / one.run_id / "verdict.json").read_text())["kind"]
        for one in family.settings
    }
    assert kinds == {"family"}
    assert cli.main(["history", "--json"]) == 0
    assert [run["run_id"] for run in told(capsys)["runs"]] == [family.winner_run]
