"""``levergate stack`` and ``roofline`` through real processes, on the stub workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments.conditions import Limits
from experiments.home import Home, make_folder
from experiments.profiling_records import GROUPS
from experiments.stack import store as stack_store
from experiments.stack import tracking as stack_tracking
from experiments.stack.records import StackRecord
from levers.errors import StoreError
from tests.support import runs
from tests.support.stub_workload import RATE

STACK = ["stack", "stub", "--set", "clock=virtual", "--blocks", "4", "--seed", "3", "--yes"]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    # A busy machine may cost a block; how is tested elsewhere, and these tests share theirs.
    monkeypatch.setattr("experiments.stack.run.limits_for", lambda *_: Limits())
    monkeypatch.setattr(stack_tracking, "mirror", lambda *_: "")
    return tmp_path / "home"


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_stack_says_what_each_lever_brings_and_counts_no_gain_twice(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    levers = ["--levers", "planted_fast=on,planted_takes_in=on", "--profile", "--json"]
    assert cli.main([*STACK, *levers]) == 0
    answer = told(capsys)
    assert answer["outcome"] is None
    record = StackRecord.model_validate(answer["record"])
    assert [row.name for row in record.spec.rows] == [
        "no lever",
        "planted_fast=on",
        "planted_fast=on + planted_takes_in=on",
        "planted_takes_in=on",
    ]
    fast, takes_in = (gain.effect(RATE) for gain in record.analysis.gains)
    assert fast is not None
    assert takes_in is not None
    assert fast.estimate == pytest.approx(0.223, abs=0.02)
    assert takes_in.estimate == pytest.approx(0.065, abs=0.02)
    total = record.analysis.total.effect(RATE) if record.analysis.total else None
    assert total is not None
    assert record.analysis.log_sum == pytest.approx(total.estimate, abs=1e-12)
    (crossed,) = record.analysis.interactions
    assert crossed.effect(RATE).estimate == pytest.approx(-0.223, abs=0.03)  # type: ignore[union-attr]
    assert record.analysis.left_out[0].inert
    assert record.profile is not None
    _shown_and_kept(home, record, capsys)


def _shown_and_kept(home: Path, record: StackRecord, capsys: pytest.CaptureFixture[str]) -> None:
    """What was stored is found again by ``show`` and ``roofline``, and in a bundle."""
    (folder,) = (home / "stacks").iterdir()
    assert stack_store.read_bundle(folder / stack_store.bundle_name(record)) == record
    assert "no gain is counted twice" in (folder / "stack.md").read_text()
    assert "<svg" in (folder / "report.html").read_text()
    assert cli.main(["show", record.stack_id[:12], "--html", str(home / "page.html")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "a measurement, no verdict" in shown
    assert "they overlap" in shown
    assert (home / "page.html").read_text().startswith("<!doctype html>")
    assert cli.main(["roofline", record.stack_id, "--json"]) == 0
    found = told(capsys)["profile"]
    assert [group["group"] for group in found["groups"]] == list(GROUPS)
    assert not list((home / "runs").iterdir())


@pytest.mark.slow
def test_a_stack_whose_parity_failed_shows_no_speed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeyed = "planted_fast=on,planted_several=wrong"
    assert cli.main([*STACK, "--levers", monkeyed, "--json"]) == 2
    assert "both change stub.product" in capsys.readouterr().err
    assert cli.main([*STACK, "--levers", "planted_wrong=on", "--json"]) == 4
    record = StackRecord.model_validate(told(capsys)["record"])
    assert record.status == "refused"
    assert record.faults[0][0] == "parity-failed"
    assert not any(one.samples for one in record.evidence)
    assert not record.analysis.gains
    assert cli.main(["stack", "--show", record.stack_id]) == 0
    assert "no speed is shown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--levers", "planted_fast=on", "--first", "size=32"], "the first row has size=32"),
        (["--levers", "planted_fast=on", "--blocks", "5"], "cannot be balanced"),
        (["--levers", "planted_fast=on,planted_fast=on"], "named twice"),
        (["--levers", "planted_fast=off"], "adds nothing"),
        (["--levers", "planted_fas=on"], "did you mean 'planted_fast'"),
        (["--levers", "planted_several=absent"], "this machine has none"),
        (["--levers", "segment_sum_broadcast=on"], "has no site in workload 'stub'"),
        (["--levers", "planted_several"], "--levers 'planted_several' has no setting"),
        ([], "no lever is default-ON"),
        (
            ["--levers", "planted_fast=on", "--published", "none stub/items_s=3 size=8"],
            "is of size=8 and the rows are of size=64",
        ),
    ],
)
def test_a_stack_that_cannot_be_read_measures_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main([*STACK, *words]) == 2
    assert said in capsys.readouterr().err
    assert not (home / "stacks").exists()


def test_a_run_that_was_not_profiled_says_how_to_record_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["roofline", "20260101T000000-abcdef"]) == 2
    assert "no run" in capsys.readouterr().err


def test_stack_needs_a_workload(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stack"]) == 2
    assert "needs a WORKLOAD" in capsys.readouterr().err


def test_an_edited_stack_bundle_is_refused(tmp_path: Path) -> None:
    from tests.support import stack_factory

    record = stack_factory.record(stack_factory.spec(), lambda names: 0.1 * len(names))
    path = tmp_path / stack_store.bundle_name(record)
    path.write_text(stack_store.dump(record))
    assert stack_store.read_bundle(path) == record
    path.write_text(path.read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(StoreError, match="edited or damaged"):
        stack_store.read_bundle(path)


def test_a_beginning_that_fits_no_stack_is_no_stack(tmp_path: Path) -> None:
    assert not stack_store.known(Home(tmp_path, tmp_path), "2026")


def stored(home: Path, **changes: object) -> StackRecord:
    """A drawn stack on disk, as an interrupted or ended process leaves it."""
    from tests.support import stack_factory

    record = stack_factory.record(stack_factory.spec(), lambda names: 0.1 * len(names))
    record = record.model_copy(update=changes)
    folder = make_folder(home / stack_store.FOLDER / record.stack_id)
    stack_store.begin(folder, record)
    return record


@pytest.mark.parametrize("word", ["--first", "--published"])
def test_a_resumed_stack_refuses_what_it_could_only_ignore(
    home: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert cli.main(["stack", "stub", "--resume", "2026", word, "size=8"]) == 2
    assert f"{word} could not change it" in capsys.readouterr().err


def test_history_lists_stacks_so_that_their_ids_can_be_found(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = stored(home, status="running", evidence=())
    damaged = make_folder(home / stack_store.FOLDER / "20260101T000000-dddddd")
    (damaged / stack_store.HEAD).write_text("{}")
    assert cli.main(["history"]) == 0
    said = capsys.readouterr().out
    assert f"stack {record.stack_id} interrupted: flow, a=on + b=on + c=on" in said
    assert "is no stack of this version" in said
    assert cli.main(["history", "--json"]) == 0
    assert {one["stack_id"] for one in told(capsys)["stacks"]} == {record.stack_id, damaged.name}


@pytest.mark.parametrize(
    "words",
    [
        ["pr", "ID"],
        ["replay", "ID"],
        ["invalidate", "ID", "--name", "A", "--reason", "b"],
        ["show", "ID", "--expect", "default-ON"],
    ],
)
def test_a_command_about_verdicts_says_that_a_stack_has_none(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    record = stored(home, status="running", evidence=())
    assert cli.main([record.stack_id if one == "ID" else one for one in words]) == 2
    assert f"{record.stack_id} is a stack: a measurement" in capsys.readouterr().err


def test_a_stack_travels_by_its_bundle(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = stored(home, status="refused", faults=(("parity-failed", "a=on: why"),))
    bundle = tmp_path / "bundle.json"
    assert cli.main(["export", record.stack_id, str(bundle)]) == 0
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "other"))
    assert cli.main(["import", str(bundle)]) == 0
    assert f"took in {record.stack_id}" in capsys.readouterr().out
    assert cli.main(["import", str(bundle), "--json"]) == 0
    assert told(capsys)["bundles"][0]["new"] is False
    where = Home(tmp_path / "other", tmp_path / "locks")
    assert stack_store.reread(where, record.stack_id) == record
    stack_store.begin(
        make_folder(home / stack_store.FOLDER / record.stack_id),
        record.model_copy(update={"total_s": 7.0}),
    )
    monkeypatch.setenv("LEVERGATE_HOME", str(home))
    assert cli.main(["import", str(bundle)]) != 0
    assert "another content" in capsys.readouterr().err


def test_an_interrupted_stack_is_not_exported(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = stored(home, status="running", evidence=())
    assert cli.main(["export", record.stack_id, str(tmp_path)]) == 2
    assert "is no evidence yet" in capsys.readouterr().err


def test_sync_mirrors_the_stacks_that_mlflow_lacks_and_none_twice(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = stored(home, status="refused", faults=(("parity-failed", "a=on: why"),))
    stored(home, status="running", evidence=(), stack_id="20260101T000000-eeeeee")
    said = ["the store is down", ""]
    monkeypatch.setattr(stack_tracking, "mirror", lambda *_: said.pop(0))
    assert cli.main(["sync"]) == 1
    assert (
        "1 runs, stacks or rows still wait for MLflow: MLflow does not hold"
        in capsys.readouterr().err
    )
    assert cli.main(["sync", "--json"]) == 0
    assert told(capsys)["mirrored"] == [record.stack_id]
    assert cli.main(["sync", "--json"]) == 0
    assert told(capsys)["mirrored"] == []
    assert said == []


def test_sync_names_a_stack_that_cannot_be_read(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = make_folder(home / stack_store.FOLDER / "20260101T000000-dddddd")
    (damaged / stack_store.HEAD).write_text("{}")
    assert cli.main(["sync"]) == 1
    assert "is no stack of this version" in capsys.readouterr().err
