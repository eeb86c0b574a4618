from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import ab_run, home, unfinished
from experiments.registry.store import Registry
from experiments.requests import AbRequest, HistoryRow, SilentListener
from experiments.spool import Spool
from experiments.spool_reader import HEAD, JOURNAL
from levers.errors import UsageError
from tests.support import records_factory

STORED = HistoryRow(
    "20260302T000000-stored", "2026-03-02", "x", "off", "on", "decode", "CPU", "decided"
)


def begun(runs: Path, run_id: str, created_at: str) -> Spool:
    whole = records_factory.default_on()
    empty = {"samples": (), "looks": (), "lost": (), "parity": None, "decision": None}
    named = {"run_id": run_id, "created_at": created_at, "status": "running"}
    return Spool.create(runs, whole.model_copy(update={**empty, **named}))


def test_a_run_that_was_killed_is_in_the_history_until_the_registry_has_it(tmp_path: Path) -> None:
    begun(tmp_path, "20260301T000000-old", "2026-03-01").close()
    begun(tmp_path, "20260303T000000-new", "2026-03-03").close()
    rows = unfinished.added([STORED], tmp_path, None)
    assert [(row.run_id[-3:], row.status) for row in rows] == [
        ("new", "interrupted"),
        ("red", "decided"),
        ("old", "interrupted"),
    ]
    assert unfinished.added(rows, tmp_path, None) == rows
    assert unfinished.added([], tmp_path, "another") == ()


def test_a_run_that_goes_on_now_is_shown_as_running(tmp_path: Path) -> None:
    with begun(tmp_path, "20260301T000000-now", "2026-03-01"):
        (row,) = unfinished.added([], tmp_path, "fa2_nsplits_cap")
    assert (row.status, row.lever, row.cand) == ("running", "fa2_nsplits_cap", "auto")


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    for run_id in ("20260301T000000-a", "20260302T000000-b", "20260303T000000-c"):
        begun(tmp_path, run_id, run_id[:8]).close()
    (tmp_path / "20260301T000000-a" / HEAD).write_text("{")
    (tmp_path / "20260302T000000-b" / JOURNAL).write_text("{\n{}\n")
    assert [row.run_id[-1] for row in unfinished.added([], tmp_path, None)] == ["c"]


def test_a_run_of_another_lever_is_not_resumed(tmp_path: Path) -> None:
    where = home.find({"LEVERGATE_HOME": str(tmp_path)}, tmp_path)
    begun(where.runs, "20260301T000000-a", "2026-03-01").close()
    request = AbRequest(lever="segment_sum_broadcast", resume="20260301")
    cure = "is of fa2_nsplits_cap, not .*; levergate ab fa2_nsplits_cap --resume 20260301T000000-a"
    own = replace(request, lever="fa2_nsplits_cap")
    with Registry.open(where.registry) as registry:
        with pytest.raises(UsageError, match=cure):
            ab_run._to_resume(request, where, registry)
        assert ab_run._to_resume(own, where, registry) == "20260301"
        assert ab_run._to_resume(replace(own, cand="auto"), where, registry) == "20260301"
        with pytest.raises(UsageError, match="has --cand auto, not 2; levergate ab"):
            ab_run._to_resume(replace(own, cand="2"), where, registry)


def test_a_run_that_is_interrupted_before_its_first_sample_names_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    where = home.find({"LEVERGATE_HOME": str(tmp_path)}, tmp_path)
    spool = begun(where.runs, "20260301T000000-a", "2026-03-01")
    monkeypatch.setattr(ab_run, "_begin", lambda *_: (None, spool))
    monkeypatch.setattr(ab_run, "_decide", interrupted)
    said = "run 20260301T000000-a was interrupted; go on with --resume 20260301T000000-a"
    with Registry.open(where.registry) as registry, pytest.raises(KeyboardInterrupt, match=said):
        ab_run.run(AbRequest(lever="x"), where, registry, SilentListener())
