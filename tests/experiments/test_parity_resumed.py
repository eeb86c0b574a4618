"""Going on with a run whose parity was shown before: what still holds, and what it may not do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments import ab_run, locks, preflight, run_setup, spool_reader
from experiments.binding import NOTE
from experiments.environment import cpu_device
from experiments.home import Home
from experiments.preflight import Free
from experiments.prepare import Comparison, compare
from experiments.records import Decision, Outcome
from experiments.registry.store import Registry
from experiments.requests import AbRequest, SilentListener
from experiments.run_record import RunRecord
from experiments.sitting import Sitting
from experiments.spool import Spool
from levers.errors import BadParameter, UsageError
from tests.support import records_factory, runs
from tests.support.runs import lines_of, told

FAST = ("ab", "planted_fast", "--cand", "on", "--set", "clock=virtual", "--yes", "--json")
ONLY = "--parity-only"
MANY = Free(disk_bytes=1 << 40, host_bytes=1 << 40)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    return tmp_path / "home"


def resumed(run_id: str) -> list[str]:
    return ["ab", "planted_fast", "--resume", run_id, ONLY, "--yes", "--json"]


def test_parity_is_shown_again_where_a_variable_has_changed_and_no_kept_result_serves(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*FAST, ONLY]) == 3
    run_id = told(capsys)["run_id"]
    monkeypatch.setenv("MYK", "1")
    assert cli.main(resumed(run_id)) == 3
    record = RunRecord.model_validate(told(capsys)["record"])
    assert any("the variable MYK changed" in text for text in record.warnings)
    assert (lines_of(home, "witness"), lines_of(home, "parity")) == (4, 2)
    assert record.parity is not None
    assert not any(one.cached for one in record.parity.checks)
    assert cli.main(resumed(run_id)) == 3
    assert lines_of(home, "parity") == 2, "now it holds"


# --- what was never measured is never decided ---------------------------------------------------


def decided(folder: Path, **changes: Any) -> RunRecord:
    """An inconclusive run on disk whose intervals may be extended."""
    whole = records_factory.default_on()
    spec = whole.spec.model_copy(update={"sequential": "anytime", "looks": (6,)})
    found = Decision(outcome=Outcome.INCONCLUSIVE, reason="win-undecided")
    record = RunRecord(**{**dict(whole), "spec": spec, "looks": (), "decision": found, **changes})
    with Spool.create(folder, record) as spool:
        spool.finish(record)
    return record


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "is decided: nothing is left to check"),
        ({"samples": ()}, "is decided: nothing is left to check"),
        ({"decision": None, "status": "interrupted"}, "has samples: nothing is left to check"),
    ],
)
def test_no_extension_is_written_for_parity_alone(
    tmp_path: Path, changes: Mapping[str, Any], said: str
) -> None:
    home = Home(tmp_path / "home", tmp_path / "locks").make()
    record = decided(home.runs, **changes)
    if record.status != "decided":
        (home.runs / record.run_id / spool_reader.VERDICT).unlink()
        with Spool.resume(home.runs, record.run_id)[0] as spool:
            for sample in record.samples:
                spool.sample(sample)
    request = AbRequest(record.spec.lever, resume=record.run_id, max_pairs=12, parity_only=True)
    with Registry.open(home.registry) as registry, pytest.raises(UsageError, match=said):
        ab_run._to_resume(request, home, registry)
    assert spool_reader.run_ids(home.runs) == [record.run_id]


def test_one_that_merely_stopped_is_not_decided(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Sitting, "before_timing", lambda _: False)
    assert cli.main([*FAST, ONLY]) == 3
    answer = told(capsys)
    assert (answer["status"], answer["outcome"]) == ("interrupted", None)


# --- room ---------------------------------------------------------------------------------------


class Estimates(SilentListener):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_estimate(self, seconds: float, pairs: int) -> None:
        self.seen.append(seconds)


@pytest.fixture
def begun(home: Path) -> tuple[Comparison, Home, str]:
    """A run on disk of which nothing is done."""
    where = Home(home, home.parent / "locks").make()
    comparison = compare(AbRequest("planted_fast", cand="on"), cpu_device())
    here = records_factory.default_on().environment
    with Spool.create(where.runs, run_setup.head_of(comparison, here)) as spool:
        return comparison, where, spool.folder.name


def gone_on(
    begun: tuple[Comparison, Home, str], monkeypatch: pytest.MonkeyPatch, *, timed: bool
) -> Estimates:
    _, home, run_id = begun
    monkeypatch.setattr(run_setup, "same_device", lambda _: cpu_device())
    heard = Estimates()
    _, spool = ab_run._resume(run_id, home, heard, timed=timed)
    with spool:
        assert spool.noted(NOTE) is not None
    return heard


def test_a_run_that_begins_its_samples_says_what_they_take_and_needs_room(
    begun: tuple[Comparison, Home, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(gone_on(begun, monkeypatch, timed=True).seen) == 1
    assert gone_on(begun, monkeypatch, timed=False).seen == []
    none = Free(disk_bytes=1 << 40, host_bytes=1)
    monkeypatch.setattr(preflight, "free_now", lambda *_: none)
    with pytest.raises(BadParameter, match=r"of host memory, 0\.0 GB are free"):
        gone_on(begun, monkeypatch, timed=True)


def test_memory_of_who_holds_the_device_is_waited_for_and_looked_at_once_it_is_held(
    begun: tuple[Comparison, Home, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison, home, run_id = begun
    (uuid,) = cpu_device().uuids
    monkeypatch.setattr(preflight, "free_now", lambda *_: Free(disk_bytes=1 << 40, host_bytes=1))
    with pytest.raises(BadParameter, match="host memory"):
        run_setup.check_fits(comparison, home)
    with locks.device(home.device_locks, uuid, "a holder", now=datetime.now(UTC).isoformat()):
        run_setup.check_fits(comparison, home)
        with pytest.raises(BadParameter, match=f"end what holds it.*--resume {run_id}"):
            run_setup.room_held(comparison, home, run_id)


def test_what_lacks_room_beside_others_is_done_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter((MANY, Free(disk_bytes=1 << 40, host_bytes=1)))
    monkeypatch.setattr(preflight, "free_now", lambda *_: next(looks, MANY))
    assert cli.main([word for word in (*FAST, ONLY) if word != "--json"]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "beside others: the run needs 0.3 GB of host memory" in said
    assert "once more, with the device held alone" in said
