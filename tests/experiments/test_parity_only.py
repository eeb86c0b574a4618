"""``ab --parity-only`` through real processes, on the stub workload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments import bundles, checked, holders, locks, prepare, spool_reader
from experiments.conditions import Limits
from experiments.environment import cpu_device
from experiments.family import run as family_run
from experiments.parity.battery import Battery
from experiments.parity.cache import ParityCache
from experiments.parity.results import failed
from experiments.parity_records import ParityReport
from experiments.records import ArmFailure
from experiments.registry.store import Registry
from experiments.requests import AbRequest, SilentListener
from experiments.run_record import RunRecord
from experiments.sitting import Sitting
from experiments.view.verdict import view
from tests.support import records_factory, runs
from tests.support.runs import lines_of, told

ROOT = Path(__file__).parents[2]
FAST = ("ab", "planted_fast", "--cand", "on", "--set", "clock=virtual", "--yes")
ONLY = "--parity-only"
OUT_OF_MEMORY = ArmFailure(arm="cand", kind="out-of-memory", stage="parity", message="no room")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    # A busy machine may cost a pair; how is tested elsewhere, and these tests share theirs.
    monkeypatch.setattr("experiments.sitting.limits_for", lambda *_: Limits())
    return tmp_path / "home"


def on_disk(home: Path) -> RunRecord:
    (run_id,) = spool_reader.run_ids(home / "runs")
    return spool_reader.load(home / "runs", run_id).record


def listed_as_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """The history shows the one run of the lever as right and not timed."""
    assert cli.main(["history", "planted_fast", "--json"]) == 0
    (row,) = told(capsys)["runs"]
    assert (row["status"], row["outcome"], row["parity"]) == ("interrupted", "", "lossless")
    assert cli.main(["history"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "parity passed" in shown
    assert "not timed" in shown


def first_battery(
    monkeypatch: pytest.MonkeyPatch, instead: Callable[[ParityReport], Any]
) -> list[bool]:
    """What the first battery reports is made by ``instead``; whether each ran beside others."""
    whole, heard = Sitting._battery, []

    def battery(self: Sitting, checks: Battery) -> tuple[ParityReport, tuple[ArmFailure, ...]]:
        heard.append(self.beside)
        report, failures = whole(self, checks)
        return instead(report) if len(heard) == 1 else (report, failures)

    monkeypatch.setattr(Sitting, "_battery", battery)
    return heard


def test_what_passes_is_timed_later_and_nothing_is_checked_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*FAST, ONLY, "--json"]) == 3
    answer = told(capsys)
    command = f"levergate ab planted_fast --resume {answer['run_id']}"
    assert (answer["outcome"], answer["status"]) == (None, "interrupted")
    assert answer["headline"] == "parity passed planted_fast=on - nothing was timed: no verdict"
    assert "nothing was timed" in answer["text"]
    again = "nothing is checked again while code and variables stay as they are."
    assert answer["cure"] == f"{command} measures; {again}"
    record = RunRecord.model_validate(answer["record"])
    assert record.parity is not None
    assert len(record.witnesses) == 2
    assert record.samples == ()

    listed_as_checked(capsys)
    assert cli.main(["show", answer["run_id"]]) == 0
    assert command in " ".join(capsys.readouterr().out.split())

    assert cli.main([*FAST, ONLY, "--resume", answer["run_id"], "--json"]) == 3
    assert told(capsys)["run_id"] == answer["run_id"]
    assert lines_of(home, "timing") == 1, "there was nothing left to check"

    assert cli.main([*command.split()[1:], "--yes", "--json"]) == 0
    answer = told(capsys)
    assert answer["outcome"] == "default-ON"
    assert (lines_of(home, "witness"), lines_of(home, "parity")) == (2, 1)
    assert lines_of(home, "check") == len(on_disk(home).parity.checks)  # type: ignore[union-attr]
    assert cli.main([*command.split()[1:], ONLY, "--yes"]) == 2
    assert "is decided" in capsys.readouterr().err


def test_a_gate_on_what_passed_finds_no_verdict_and_ends_as_the_run_did(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*FAST, ONLY, "--json"]) == 3
    run_id = told(capsys)["run_id"]
    for expected in ("default-ON", "gated-OFF", "inconclusive"):
        assert cli.main(["show", run_id, "--expect", expected]) == 3
    assert cli.main(["show", run_id, "--detailed-exitcode"]) == 3
    assert cli.main(["show", run_id]) == 0


def test_what_passed_elsewhere_is_listed_as_it_is_shown_and_its_verdict_updates_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed, decided = tmp_path / "passed.json", tmp_path / "decided.json"
    assert cli.main([*FAST, ONLY, "--json"]) == 3
    run_id = told(capsys)["run_id"]
    assert cli.main(["export", run_id, str(passed)]) == 0
    assert cli.main(["ab", "planted_fast", "--resume", run_id, "--yes"]) == 0
    assert cli.main(["export", run_id, str(decided)]) == 0

    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "other"))
    assert cli.main(["import", str(passed)]) == 0
    capsys.readouterr()
    listed_as_checked(capsys)
    assert cli.main(["show", run_id, "--expect", "default-ON"]) == 3
    capsys.readouterr()

    assert cli.main(["import", str(decided)]) == 0
    assert capsys.readouterr().out == f"updated {run_id} from {decided}\n"
    assert cli.main(["import", str(passed), str(decided), "--json"]) == 0
    found = [(one["new"], one["updated"]) for one in told(capsys)["bundles"]]
    assert found == [(False, False)] * 2, "an earlier state changes nothing"
    assert cli.main(["history", "--json"]) == 0
    (row,) = told(capsys)["runs"]
    assert (row["outcome"], row["parity"]) == ("default-ON", "")
    assert cli.main(["show", run_id, "--expect", "default-ON"]) == 0


def test_an_update_is_said_in_json_too(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = []
    for record in (untimed(), records_factory.default_on()):
        places.append(bundles.export(record, tmp_path / f"{record.status}.json"))
    found = []
    for place in places:
        assert cli.main(["import", str(place), "--json"]) == 0
        found += [(one["new"], one["updated"]) for one in told(capsys)["bundles"]]
    assert found == [(True, False), (False, True)]


def test_another_run_of_the_same_comparison_finds_what_passed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for cached in (False, True):
        assert cli.main([*FAST, ONLY, "--json"]) == 3
        record = RunRecord.model_validate(told(capsys)["record"])
        assert record.parity is not None
        passed = [one.cached for one in record.parity.checks if one.status == "passed"]
        assert passed == [cached] * 3


def test_several_settings_are_refused_and_a_selection_of_that_seed_finds_what_passed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ab", "planted_several", "--cand", "3,4", "--yes", ONLY]
    assert cli.main(words) == 2
    assert "give one --cand at a time, each with the same --seed N" in capsys.readouterr().err
    request = AbRequest("planted_several", cand="3", seed=5)
    one = prepare.compare(request, cpu_device()).spec
    with Registry.open(tmp_path / "registry.db") as registry:
        selection = family_run._resolve(request, ("3", "4"), registry, SilentListener())
    several, cache = selection.comparisons[0].spec, ParityCache(tmp_path, "stack")
    assert several.looks != one.looks
    assert cache.key("tokens", several) == cache.key("tokens", one)


@pytest.mark.parametrize(
    ("lever", "code", "outcome", "reason"),
    [
        ("planted_wrong", 10, "gated-OFF", "parity-failed"),
        ("planted_noop", 4, "invalid", "not-engaged"),
    ],
)
def test_what_does_not_pass_is_decided_as_ever(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    lever: str,
    code: int,
    outcome: str,
    reason: str,
) -> None:
    words = ["ab", lever, "--cand", "on", "--set", "clock=virtual", "--yes", "--json"]
    assert cli.main([*words, ONLY, "--detailed-exitcode"]) == code
    answer = told(capsys)
    assert (answer["status"], answer["outcome"], answer["reason"]) == ("decided", outcome, reason)
    assert cli.main(["history", lever, "--json"]) == 0
    assert [row["outcome"] for row in told(capsys)["runs"]] == [outcome]


def test_a_failure_beside_others_is_no_evidence_and_is_tried_again_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = first_battery(monkeypatch, lambda report: (report, (OUT_OF_MEMORY,)))
    assert cli.main([*FAST, ONLY]) == 3
    assert heard == [True, False]
    said = " ".join(capsys.readouterr().err.split())
    assert "beside others: out-of-memory: the candidate out-of-memory at parity: no room" in said
    assert "once more, with the device held alone" in said
    record = on_disk(home)
    assert record.failures == ()
    assert checked.let_through(record)


def test_a_wrong_value_beside_others_is_evidence_and_is_not_asked_for_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(report: ParityReport) -> Any:
        bad = failed("determinism", "too far", "logits", (3, 4))
        checks = (bad if one.name == bad.name else one for one in report.checks)
        return report.model_copy(update={"checks": tuple(checks)}), ()

    heard = first_battery(monkeypatch, wrong)
    assert cli.main([*FAST, ONLY, "--json"]) == 0
    assert told(capsys)["reason"] == "parity-failed"
    assert heard == [True]


def test_a_witness_that_fails_beside_others_is_taken_again_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []

    def failure_of(arm: str, result: Any) -> ArmFailure | None:
        heard.append(arm)
        return OUT_OF_MEMORY.model_copy(update={"stage": "witness"}) if len(heard) == 2 else None

    monkeypatch.setattr("experiments.sitting.failure_of", failure_of)
    assert cli.main([*FAST, ONLY]) == 3
    assert heard == ["ref", "cand", "cand"]
    assert "witness, cand out-of-memory: no room" in " ".join(capsys.readouterr().err.split())
    assert checked.let_through(on_disk(home))


def test_a_run_with_samples_holds_the_device_alone_and_keeps_its_failures(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = first_battery(monkeypatch, lambda report: (report, (OUT_OF_MEMORY,)))
    assert cli.main([*FAST, "--json"]) == 0
    assert told(capsys)["reason"] == "out-of-memory"
    assert heard == [False]


def test_one_that_is_interrupted_in_parity_goes_on_with_parity_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: ParityReport) -> Any:
        raise KeyboardInterrupt

    first_battery(monkeypatch, interrupt)
    assert cli.main([*FAST, ONLY]) == 130
    run_id = on_disk(home).run_id
    assert f"go on with --resume {run_id}" in capsys.readouterr().err
    assert view(on_disk(home)).label == "interrupted"
    assert cli.main(["ab", "planted_fast", "--resume", run_id, ONLY, "--yes", "--json"]) == 3
    answer = told(capsys)
    assert answer["run_id"] == run_id
    assert answer["headline"].startswith("parity passed")
    assert lines_of(home, "witness") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--screen",), "a screen has no parity; leave out --parity-only to screen, or --screen"),
        (("--profile",), "leave out --expect and --profile, or --parity-only"),
        (("--expect", "gated-OFF"), "what passes has no verdict to expect"),
    ],
)
def test_what_makes_no_sense_without_samples_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], said: str
) -> None:
    assert cli.main([*FAST, ONLY, *words]) == 2
    assert said in capsys.readouterr().err
    assert not (home / "runs").exists() or not list((home / "runs").iterdir())


def test_a_budget_and_pairs_are_those_of_the_samples_to_come(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*FAST, ONLY, "--budget", "10m", "--pairs", "6", "--json"]) == 3
    out, err = capsys.readouterr()
    spec = json.loads(out)["record"]["spec"]
    assert (spec["budget_s"], spec["looks"]) == (600.0, [6])
    assert "estimate" not in err


def test_a_run_that_has_samples_has_nothing_left_to_check(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.runner.Collector._run_step", _stops_after_one())
    assert cli.main([*FAST]) == 130
    run_id = on_disk(home).run_id
    assert cli.main(["ab", "planted_fast", "--resume", run_id, ONLY, "--yes"]) == 2
    cure = f"levergate ab planted_fast --resume {run_id} goes on with them"
    assert cure in " ".join(capsys.readouterr().err.split())


def _stops_after_one() -> Callable[..., Any]:
    from experiments.runner import Collector

    step, heard = Collector._run_step, []

    def run(self: Collector, one: Any) -> Any:
        heard.append(one)
        if len(heard) == 3:
            raise KeyboardInterrupt
        return step(self, one)

    return run


# --- what may be called passed ------------------------------------------------------------------


def untimed(**changes: Any) -> RunRecord:
    whole = records_factory.default_on()
    none = {"samples": (), "looks": (), "lost": (), "decision": None, "status": "interrupted"}
    return whole.model_copy(update={**none, **changes})


def test_only_what_nothing_speaks_against_counts_as_let_through() -> None:
    assert checked.let_through(untimed())
    assert not checked.let_through(untimed(parity=None))
    assert not checked.let_through(untimed(failures=(OUT_OF_MEMORY,)))
    assert not checked.let_through(untimed(parity=records_factory.parity_failed().parity))
    assert not checked.let_through(untimed(samples=records_factory.interrupted().samples))
    assert view(untimed(status="running")).label == "running"
    assert view(untimed(parity=records_factory.parity_failed().parity)).label == "interrupted"


# --- one device ---------------------------------------------------------------------------------


def started(home: Path, *words: str) -> subprocess.Popen[str]:
    """The command line in a process of its own, with a home of its own and these locks."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "LEVERGATE_HOME": str(home), "PYTHONPATH": str(ROOT)},
    )


def test_parity_alone_runs_beside_parity_and_a_timing_run_waits_until_all_have_gone(
    home: Path, tmp_path: Path
) -> None:
    (uuid,) = cpu_device().uuids
    lock = locks.device_lock_path(tmp_path / "locks", uuid)
    said: list[str] = []
    waits = threading.Event()

    def listen(process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if "waiting for the device" in line:
                waits.set()

    with locks.device(tmp_path / "locks", uuid, "my parity", now="2026-01-01", shared=True):
        timing = started(tmp_path / "timing", *FAST, "--pairs", "6")
        listener = threading.Thread(target=listen, args=(timing,))
        listener.start()
        assert waits.wait(60)
        beside = started(tmp_path / "beside", *FAST, ONLY)
        assert beside.stderr is not None
        assert beside.stderr.read().count("waiting for the device") == 0
        beside.stderr.close()
        assert beside.wait() == 3
        assert [who.purpose for who in holders.holding(lock)] == ["my parity"]
        assert timing.poll() is None
    assert timing.wait(120) in (0, 3, 4)  # a busy machine may cost its pairs
    listener.join()
    assert timing.stderr is not None
    timing.stderr.close()
    assert "held by my parity (process" in "".join(said).replace("\n", " ")
    assert on_disk(tmp_path / "timing").status == "decided"
