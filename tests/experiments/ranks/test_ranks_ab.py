"""``levergate ab --ranks 2``: from a request to a stored decision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments import pipeline
from experiments.records import Decision
from experiments.requests import NO_ORACLE, AbRequest, SilentListener
from tests.support import runs


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_WORKLOADS", "ranked=tests.support.ranked_workload:RANKED")
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))


def decided(cand: str, **settings: str) -> Decision:
    request = AbRequest(
        "planted_rank",
        cand=cand,
        workload="ranked",
        device="cpu",
        settings=settings,
        oracle=NO_ORACLE,
        ranks=2,
    )
    record = pipeline.ab(request, SilentListener(), mirror=False)
    assert record.decision is not None
    assert pipeline.replay(record.run_id) == (record.decision, record.decision)
    return record.decision


def test_ranks_that_disagree_make_the_run_invalid() -> None:
    decision = decided("on", fault="start")
    assert (decision.outcome, decision.reason) == ("invalid", "ranks-disagree")
    assert "weights at the start: 0.weight: rank 1 has " in decision.detail


def test_a_candidate_that_fails_on_one_rank_is_off_and_the_rank_is_named() -> None:
    decision = decided("raise")
    assert (decision.outcome, decision.reason) == ("gated-OFF", "candidate-crashed")
    assert "rank 1 of 2: RuntimeError: this rank cannot" in decision.detail


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--ranks", "99"), "99 ranks cannot share one CPU"),
        (("--ranks", "0"), "ranks"),
        (("--ranks", "2", "--screen"), "a screen runs in one process"),
    ],
)
def test_an_impossible_number_of_ranks_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    asked = ["ab", "planted_rank", "--workload", "ranked", "--device", "cpu", *words]
    code = cli.main([*asked, "--json", "--yes"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().err)
    assert code == 2
    assert text in json.dumps(answer)
