"""Code that is edited while a run is at work: no arm's fault, and no verdict."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments import prepare, spool_reader
from experiments.code_watch import CodeChanged, CodeWatch
from experiments.conditions import Limits
from experiments.executor import Executor
from experiments.exit_codes import Exit
from experiments.family.stage import Stage as Selection
from experiments.parity.cache import ParityCache, code_digest, code_files
from experiments.runner import Collector
from experiments.sitting import Sitting
from experiments.stack import tracking as stack_tracking
from experiments.stack.records import StackRecord
from experiments.stack.stage import Stage
from levers.errors import BadParameter
from levers.source import source_files
from tests.support import runs

RUN = ("ab", "planted_fast", "--cand", "on", "--set", "clock=virtual", "--yes", "--json")
ONLY = "--parity-only"
HALF_WRITTEN = "def half(:\n"


@pytest.fixture
def lever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a lever that may be edited."""
    runs.use_stub(monkeypatch)
    folder = tmp_path / "levers-of-mine"
    folder.mkdir()
    for name in ("planted_fast", "planted_several"):
        shutil.copy(runs.PLANTED / f"{name}.py", folder)
    monkeypatch.setenv("LEVERGATE_LEVERS", str(folder))
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for module in ("experiments.sitting", "experiments.stack.run"):
        monkeypatch.setattr(f"{module}.limits_for", lambda *_: Limits())
    monkeypatch.setattr(stack_tracking, "mirror", lambda *_: "")
    return folder / "planted_fast.py"


def at_call(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    *edits: tuple[int, Callable[[], object]],
) -> None:
    """Edit after the first, second ... call of a method, as its number says."""
    whole, due, calls = getattr(owner, name), dict(edits), [0]

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        found = whole(self, *arguments, **named)
        calls[0] += 1
        due.pop(calls[0], lambda: None)()
        return found

    monkeypatch.setattr(owner, name, called)


class Editor:
    """Edits one file, and takes it back."""

    def __init__(self, path: Path) -> None:
        self.path, self.first = path, path.read_text()

    def edit(self) -> None:
        self.path.write_text(self.first.replace("0.8", "0.5") + "\n# another version\n")

    def back(self) -> None:
        self.path.write_text(self.first)


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = cli.main([*(words or RUN)])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out)


def test_a_lever_edited_between_two_samples_leaves_no_verdict(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_call(monkeypatch, Collector, "_report", (1, Editor(lever).edit))
    code, answer = answered(capsys)
    assert (code, answer["outcome"], answer["reason"]) == (Exit.INVALID, "invalid", "code-changed")
    assert "planted_fast changed" in json.dumps(answer)
    assert cli.main(["replay", answer["run_id"]]) == 0


def test_an_edit_that_is_taken_back_later_is_seen_and_nothing_of_it_is_kept(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Editor(lever)
    at_call(monkeypatch, Collector, "_report", (4, mine.edit), (8, mine.back))
    code, answer = answered(capsys)
    assert (code, answer["reason"]) == (Exit.INVALID, "code-changed")
    home = Path(os.environ["LEVERGATE_HOME"])
    assert len(spool_reader.load(home / "runs", answer["run_id"]).record.samples) == 4


@pytest.mark.parametrize("become", ["half-written", "gone"])
def test_a_candidate_whose_file_cannot_be_read_is_not_called_wrong(
    become: str,
    lever: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edits = {"half-written": lambda: lever.write_text(HALF_WRITTEN), "gone": lever.unlink}
    at_call(monkeypatch, Collector, "_report", (2, edits[become]))
    code, answer = answered(capsys)
    assert (code, answer["reason"]) == (Exit.INVALID, "code-changed")


def test_what_was_checked_of_two_versions_is_not_kept_and_not_passed(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Editor(lever)
    at_call(monkeypatch, ParityCache, "get", (1, mine.edit), (2, mine.back))
    code, answer = answered(capsys, *RUN, ONLY)
    assert (code, answer["reason"]) == (Exit.INVALID, "code-changed")
    assert not [*(lever.parents[1] / "home" / "cache" / "parity").glob("*.json")]


def test_a_lever_edited_while_its_run_waits_for_the_device_is_refused(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(capsys)[0] == Exit.VERDICT
    whole = Sitting.bind

    def late(self: Sitting, *, timed: bool = False) -> None:
        Editor(lever).edit()
        whole(self, timed=timed)

    monkeypatch.setattr(Sitting, "bind", late)
    assert cli.main([*RUN]) == Exit.USAGE
    assert "has changed since the run began" in capsys.readouterr().err


def test_kept_parity_belongs_to_the_lever_as_it_is_and_not_as_it_was_asked_for(
    lever: Path, tmp_path: Path
) -> None:
    asked = runs.spec("planted_fast", levers_source_digest="of another version")
    before = ParityCache(tmp_path, "stack").key("op", asked)
    Editor(lever).edit()
    assert ParityCache(tmp_path, "stack").key("op", asked) != before
    with pytest.raises(BadParameter, match="has changed since the run began"):
        prepare.refuse_edited(asked)


@pytest.mark.slow
def test_a_selection_of_two_versions_has_no_winner_and_calls_no_setting_wrong(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    several = lever.with_name("planted_several.py")
    at_call(monkeypatch, Selection, "_round", (1, lambda: several.write_text(HALF_WRITTEN)))
    words = ("ab", "planted_several", "--cand", "2,4", "--set", "clock=virtual", "--yes", "--json")
    code, answer = answered(capsys, *words)
    assert code == Exit.INVALID
    assert json.dumps(answer).count("code-changed") >= 2
    assert "candidate-crashed" not in json.dumps(answer)


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name"), [(Stage, "_block"), (ParityCache, "get")])
def test_a_stack_whose_lever_is_edited_shows_no_speed(
    owner: type,
    name: str,
    lever: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mine = Editor(lever)
    at_call(monkeypatch, owner, name, (1, mine.edit), (3, mine.back))
    words = ("stack", "stub", "--levers", "planted_fast=on", "--set", "clock=virtual")
    code, answer = answered(capsys, *words, "--blocks", "4", "--yes", "--json")
    record = StackRecord.model_validate(answer["record"])
    assert (code, record.status) == (Exit.INVALID, "refused")
    assert record.faults[0][0] == "code-changed"
    assert not record.analysis.gains


def test_what_is_no_edit_is_no_matter(
    lever: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def innocent() -> None:
        os.utime(lever)
        lever.with_name("planted_fast.new").write_text(lever.read_text())
        lever.with_name("planted_fast.new").replace(lever)
        lever.with_name("an_idea.py").write_text("# not yet\n")
        (lever.parent / "notes.json").write_text("{}")

    at_call(monkeypatch, Executor, "run", (1, innocent), (4, innocent))
    at_call(monkeypatch, Collector, "_report", (2, innocent))
    assert answered(capsys)[0] == Exit.VERDICT


# --- what is watched --------------------------------------------------------------------------


def test_an_edit_names_the_file_and_as_many_as_can_be_read(tmp_path: Path) -> None:
    files = [(f"lever {n}", tmp_path / f"{n}.py") for n in range(5)]
    for _, path in files:
        path.write_text("x = 1\n")
    watch = CodeWatch.of(files)
    watch.look()
    for _, path in files:
        path.write_text("x = 2\n")
    with pytest.raises(CodeChanged, match="lever 0, lever 1, lever 2 and 2 more changed"):
        watch.look()


def test_what_an_editor_leaves_is_no_source(tmp_path: Path) -> None:
    levers = tmp_path / "levers"
    levers.mkdir()
    (levers / "one.py").write_text("ONE = 1\n")
    digest = code_digest(tmp_path)
    (levers / ".#one.py").symlink_to("user@host.1234")
    (levers / "gone.py").symlink_to("nowhere.py")
    (levers / ".ipynb_checkpoints").mkdir()
    (levers / ".ipynb_checkpoints" / "one-checkpoint.py").write_text("ONE = 0\n")
    assert code_digest(tmp_path) == digest
    assert [name for name, _ in code_files(tmp_path)] == ["levers/one.py"]


def test_a_module_of_the_users_own_is_part_of_a_lever(
    lever: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from levers import catalog

    place = tmp_path / "own"
    place.mkdir()
    (place / "my_kernels_of_this_test.py").write_text("COST = 0.8\n")
    monkeypatch.syspath_prepend(str(place))
    text = lever.read_text()
    own = "import torch\nimport json\nfrom my_kernels_of_this_test import COST as _\n"
    lever.write_text(text.replace("from tests.support", f"{own}from tests.support", 1))
    found = dict(source_files(catalog.get("planted_fast")))
    assert found["my_kernels_of_this_test"] == place / "my_kernels_of_this_test.py"
    assert not {"torch", "json"} & set(found)
