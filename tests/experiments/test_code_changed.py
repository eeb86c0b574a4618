"""Code that is edited while a run is at work: no arm's fault, and no verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments.conditions import Limits
from experiments.exit_codes import Exit
from experiments.parity.cache import ParityCache
from experiments.runner import Collector
from experiments.sitting import Sitting
from experiments.stack import tracking as stack_tracking
from experiments.stack.records import StackRecord
from experiments.stack.stage import Stage
from tests.support import runs

RUN = ("ab", "planted_fast", "--cand", "on", "--set", "clock=virtual", "--yes", "--json")


@pytest.fixture
def lever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a lever that may be edited."""
    runs.use_stub(monkeypatch)
    folder = tmp_path / "levers-of-mine"
    folder.mkdir()
    shutil.copy(runs.PLANTED / "planted_fast.py", folder)
    monkeypatch.setenv("LEVERGATE_LEVERS", str(folder))
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("experiments.sitting.limits_for", lambda *_: Limits())
    return folder / "planted_fast.py"


def once_after(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, edit: Callable[[], object]
) -> None:
    """Edit after the first call of a method."""
    whole, done = getattr(owner, name), []

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        found = whole(self, *arguments, **named)
        if not done:
            done.append(edit())
        return found

    monkeypatch.setattr(owner, name, called)


def add_a_line(lever: Path) -> None:
    with lever.open("a") as file:
        file.write("\n# another version\n")


@pytest.mark.slow
def test_a_stack_whose_lever_is_edited_shows_no_speed(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.stack.run.limits_for", lambda *_: Limits())
    monkeypatch.setattr(stack_tracking, "mirror", lambda *_: "")
    once_after(monkeypatch, Stage, "go", lambda: add_a_line(lever))
    words = ["stack", "stub", "--levers", "planted_fast=on", "--set", "clock=virtual"]
    assert cli.main([*words, "--blocks", "4", "--yes", "--json"]) == Exit.INVALID
    record = StackRecord.model_validate(json.loads(capsys.readouterr().out)["record"])
    assert (record.status, record.faults[0][0]) == ("refused", "code-changed")
    assert not record.analysis.gains


def answered(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = cli.main([*RUN])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out)


def test_a_lever_edited_between_two_samples_leaves_no_verdict(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once_after(monkeypatch, Collector, "_report", lambda: add_a_line(lever))
    code, answer = answered(capsys)
    assert (code, answer["outcome"], answer["reason"]) == (Exit.INVALID, "invalid", "code-changed")
    assert "lever planted_fast changed" in json.dumps(answer)
    assert cli.main(["replay", answer["run_id"]]) == 0


def test_a_candidate_that_cannot_start_from_a_half_written_file_is_not_called_wrong(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once_after(monkeypatch, Collector, "_report", lambda: lever.write_text("def half(:\n"))
    code, answer = answered(capsys)
    assert (code, answer["reason"]) == (Exit.INVALID, "code-changed")


def test_what_was_checked_of_two_versions_is_not_kept(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once_after(monkeypatch, ParityCache, "get", lambda: add_a_line(lever))
    code, answer = answered(capsys)
    assert (code, answer["reason"]) == (Exit.INVALID, "code-changed")
    assert not [*(lever.parents[1] / "home" / "cache" / "parity").glob("*.json")]


def test_code_that_stays_is_no_matter(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once_after(monkeypatch, Sitting, "_battery", lever.read_text)
    assert answered(capsys)[0] == Exit.VERDICT
