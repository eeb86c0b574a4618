from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from experiments import files, spool
from experiments.records import ArmFailure, LostPair, Sample, Timing
from experiments.run_record import RunRecord
from experiments.spool_reader import load
from experiments.witness_records import Witness
from levers.errors import StoreError, UnknownName, UsageError
from levers.policy import Axis
from tests.support import records_factory


def head(run_id: str = "20260101T000000-abcdef") -> RunRecord:
    return RunRecord(
        run_id=run_id,
        status="running",
        spec=records_factory.spec(),
        plan_digest="0123",
        created_at="2026-01-01T00:00:00+00:00",
        axes=(Axis("decode/tok_s/c1", "tok/s", True),),
        environment=records_factory.environment(),
    )


def sample(pair: int = 0, arm: str = "ref", value: float = 100.0) -> Sample:
    return Sample.model_validate(
        {
            "pair": pair,
            "arm": arm,
            "position": 0,
            "values": {"decode/tok_s/c1": value},
            "start_s": 0.1,
            "warmup_s": 0.2,
            "measured_s": 1.0,
            "wall_s": 1.4,
            "started_at": "2026-01-01T00:00:01+00:00",
            "inputs_digest": "d",
            "outputs_count": 8,
        }
    )


def test_what_was_appended_is_what_is_loaded(tmp_path: Path) -> None:
    with spool.Spool.create(tmp_path, head()) as run:
        run.sample(sample(0, "ref"))
        run.sample(sample(0, "cand"))
        run.lost(LostPair(pair=0, arm="cand", cause="foreign process"))
        run.witness(Witness(arm="ref", plans={"decode/tok_s/c1": "num_splits=7"}, launches={}))
        run.failure(ArmFailure(arm="cand", kind="hung", stage="measure", message="m"))
        run.fault("environment", "torch is gone")
        run.warning("twice")
        run.warning("twice")
        run.note("limits", {"foreign_cores": 1.5})
        assert run.noted("limits") == {"name": "limits", "foreign_cores": 1.5}
        written = run.record("interrupted")
    loaded = load(tmp_path, head().run_id)
    assert loaded.record == written
    assert loaded.record.warnings == ("twice",)
    assert not loaded.torn


def test_a_run_whose_writer_lives_reads_as_running(tmp_path: Path) -> None:
    with spool.Spool.create(tmp_path, head()) as run:
        run.sample(sample())
        assert load(tmp_path, head().run_id).record.status == "running"
    assert load(tmp_path, head().run_id).record.status == "interrupted"


def test_a_cut_last_line_is_dropped_and_said(tmp_path: Path) -> None:
    with spool.Spool.create(tmp_path, head()) as run:
        run.sample(sample(0, "ref"))
        run.sample(sample(0, "cand"))
        journal = run.folder / "journal.jsonl"
    whole = journal.read_bytes()
    for cut in (1, 10, len(whole.splitlines()[-1])):
        journal.write_bytes(whole[:-cut])
        loaded = load(tmp_path, head().run_id)
        assert loaded.torn
        assert [s.arm for s in loaded.record.samples] == ["ref"]
    resumed, loaded = spool.Spool.resume(tmp_path, head().run_id)
    with resumed:
        assert loaded.torn
        resumed.sample(sample(0, "cand"))
    assert journal.read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    with spool.Spool.create(tmp_path, head()) as run:
        run.sample(sample(0, "ref"))
        run.sample(sample(0, "cand"))
        journal = run.folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"{nonsense}\n" + lines[1])
    with pytest.raises(StoreError, match="line 1 is damaged"):
        load(tmp_path, head().run_id)


def test_a_sample_is_never_counted_twice(tmp_path: Path) -> None:
    with spool.Spool.create(tmp_path, head()) as run:
        run.sample(sample(0, "ref"))
        with pytest.raises(ValueError, match="already"):
            run.sample(sample(0, "ref"))
        run.drop(0, "ref", "half a pair")
        run.sample(sample(0, "ref", 101.0))
    record = load(tmp_path, head().run_id).record
    assert [s.values["decode/tok_s/c1"] for s in record.samples] == [101.0]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with (
        spool.Spool.create(tmp_path, head()),
        pytest.raises(StoreError, match="written by another process"),
    ):
        spool.Spool.resume(tmp_path, head().run_id)


def test_a_run_that_is_not_there_suggests_the_closest(tmp_path: Path) -> None:
    spool.Spool.create(tmp_path, head()).close()
    with pytest.raises(UnknownName, match="20260101T000000-abcdef"):
        load(tmp_path, "20260101T000000-abcdee")


def test_a_run_is_found_by_a_beginning_that_fits_no_other(tmp_path: Path) -> None:
    for run_id in ("20260101T000000-abcdef", "20260101T000000-abc", "20260102T000000-abc"):
        spool.Spool.create(tmp_path, head(run_id)).close()
    assert load(tmp_path, "20260102").record.run_id == "20260102T000000-abc"
    assert load(tmp_path, "20260101T000000-abc").record.run_id == "20260101T000000-abc"
    with pytest.raises(UsageError, match="'20260101' fits 2 runs; give more: 20260101T000000-abc"):
        load(tmp_path, "20260101")
    with pytest.raises(UnknownName):
        load(tmp_path, "")


def test_a_full_disk_names_the_cure_and_keeps_what_was_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spool.Spool.create(tmp_path, head())
    run.sample(sample(0, "ref"))
    real_write = os.write

    def half_a_line(handle: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(handle, bytes(data)[:40])

    with monkeypatch.context() as full:
        full.setattr(spool.os, "write", half_a_line)
        full.setattr(
            spool.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
        )
        with pytest.raises(StoreError, match=r"the 1 samples .* --resume 20260101T000000-abcdef"):
            run.sample(sample(0, "cand"))
    run.sample(sample(0, "cand"))
    run.close()
    loaded = load(tmp_path, head().run_id)
    assert [s.arm for s in loaded.record.samples] == ["ref", "cand"]
    assert not loaded.torn


def test_a_whole_file_is_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "verdict.json"
    files.write_atomically(target, "one")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreError, match="free space"):
        files.write_atomically(target, "two")
    assert target.read_text() == "one"
    assert list(tmp_path.iterdir()) == [target]


def test_the_timings_of_two_sittings_add_up(tmp_path: Path) -> None:
    with spool.Spool.create(tmp_path, head()) as run:
        run.timing(Timing(total_s=10, arms_measured_s=4))
    resumed, _ = spool.Spool.resume(tmp_path, head().run_id)
    with resumed:
        resumed.timing(Timing(total_s=5, arms_measured_s=4))
        timing = resumed.record().timing
    assert timing is not None
    assert (timing.total_s, timing.arms_measured_s) == (15, 8)


def test_a_decided_run_is_read_from_its_verdict_and_not_resumed(tmp_path: Path) -> None:
    decided = records_factory.default_on()
    run = spool.Spool.create(tmp_path, head(decided.run_id))
    with run:
        run.finish(decided)
    assert load(tmp_path, decided.run_id).record == decided
    with pytest.raises(UsageError, match="is decided; start a new run"):
        spool.Spool.resume(tmp_path, decided.run_id)


def test_infinite_figures_survive_the_journal(tmp_path: Path) -> None:
    with spool.Spool.create(tmp_path, head()) as run:
        run.sample(sample(0, "ref", float("inf")))
        line = json.loads((run.folder / "journal.jsonl").read_text())
    assert line["kind"] == "sample"
    record = load(tmp_path, head().run_id).record
    assert record.samples[0].values["decode/tok_s/c1"] == float("inf")


def test_run_ids_sort_by_time() -> None:
    early = spool.new_run_id(datetime(2026, 1, 1, tzinfo=UTC), "ffffff")
    late = spool.new_run_id(datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), "000000")
    assert early < late
    assert spool.new_run_id(datetime.now(UTC)) != spool.new_run_id(datetime.now(UTC))
