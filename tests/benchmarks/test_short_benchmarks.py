"""Short forms of the benchmarks that take many minutes."""

from __future__ import annotations

import pytest

from benchmarks import eight, kills, twins


@pytest.mark.slow
def test_kills_at_random_moments_lose_and_double_nothing(tmp_path, with_store):
    with_store(tmp_path)
    words = [*kills.STUB[:-1], "6"]
    result = kills.Series(words, tmp_path, kills=3, span_s=9.0, seed=3).go()
    assert result["problems"] == []
    assert result["kills"] == 3
    assert result["samples"] >= 12


@pytest.mark.slow
def test_several_at_once_on_one_fresh_home_all_end_rightly(tmp_path):
    result = eight.run(["noop", "leaky", "crashing"], tmp_path)
    assert result["problems"] == []
    assert [one["exit_code"] for one in result["runs"]] == [4, 4, 0]


@pytest.mark.slow
def test_a_wrong_twin_of_the_split_cap_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # its mirror is tested above
    (row,) = twins.run(["fa2_nsplits_cap_wrong"], twins.SHORT)
    assert (row["outcome"], row["reason"]) == ("gated-OFF", "parity-failed")
    assert "tokens" in row["detail"]
