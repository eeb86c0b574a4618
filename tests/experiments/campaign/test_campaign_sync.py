"""``levergate sync`` brings to MLflow the rows of campaigns that it lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments.campaign import reported, store
from experiments.campaign import sync as campaign_sync
from experiments.campaign.records import CampaignRow
from experiments.home import Home
from experiments.registry.store import Registry
from experiments.tracking import store as tracking_store
from levers.errors import StoreError
from tests.support.campaign_factory import axis, lever
from tests.support.campaign_factory import row as row_of

pytestmark = pytest.mark.filterwarnings("ignore")
"""MLflow warns at import; one test reads its store through its own client."""

NAME = "published-mxfp4"
DEAD = "http://127.0.0.1:9"
REPLAY = ["campaign", "run", NAME, "--replay", "--json"]


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Home:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DEAD)
    return Home(tmp_path, tmp_path / "device-locks")


def sync(capsys: pytest.CaptureFixture[str], code: int = 0) -> Any:
    capsys.readouterr()
    assert cli.main(["sync", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def rows(where: Home) -> tuple[CampaignRow, ...]:
    with Registry.open(where.registry) as registry:
        return store.rows(registry.store, NAME)


def test_a_row_that_a_dead_store_did_not_take_is_brought_to_it_later(
    where: Home,
    with_store: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(REPLAY[:-1]) == 0
    assert "levergate sync mirrors it later" in " ".join(capsys.readouterr().err.split())
    (row,) = rows(where)
    down = sync(capsys, code=1)
    assert (down["mirrored"], down["waiting"]) == ([], [row.row_id])
    assert DEAD in down["reason"]
    with_store(where.root)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert sync(capsys)["mirrored"] == [row.row_id]
    assert held(where) == [(row.row_id, row.content_digest(), row.state)]
    again = sync(capsys)
    assert (again["mirrored"], again["waiting"]) == ([], [])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DEAD)
    assert sync(capsys, code=1)["waiting"] == [row.row_id]


def test_a_row_whose_page_could_not_be_written_is_brought_to_the_store_too(
    where: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("experiments.campaign.reports.markdown", killed)
        assert cli.main(REPLAY) == 130
    (row,) = rows(where)
    assert sync(capsys, code=1)["waiting"] == [row.row_id]


def held(where: Home) -> list[tuple[str, ...]]:
    """Id, version and state of the rows in the home's own store."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_store.default_uri(where.root))
    experiment = client.get_experiment_by_name(f"campaign/{NAME}")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    names = ("levergate.run_id", "levergate.mirrored", "levergate.state")
    return [tuple(run.data.tags[name] for name in names) for run in found]


def test_a_row_that_is_held_is_not_said_to_wait_for_a_store_that_is_down_now(
    where: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.campaign.tracking.mirror", lambda *_: "")
    assert cli.main(REPLAY) == 0
    answer = sync(capsys)
    assert (answer["mirrored"], answer["waiting"]) == ([], [])
    assert DEAD in answer["reason"]


def test_rows_between_two_steps_stay_in_the_registry(
    where: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.campaign.tracking.mirror", lambda *_: "")
    assert cli.main(REPLAY) == 0
    (row,) = rows(where)
    between = row.model_copy(update={"row_id": f"{row.row_id}-b"})
    with Registry.open(where.registry) as registry:
        store.save(registry.store, between)
        found = list(reported.rows(where, registry))
    assert [one.row_id for _, one in found if isinstance(one, CampaignRow)] == [row.row_id]


def test_a_row_that_cannot_be_read_waits_with_the_reason(
    where: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.campaign.tracking.mirror", lambda *_: "")
    assert cli.main(REPLAY) == 0

    def damaged(*_: object) -> tuple[CampaignRow, ...]:
        raise StoreError("the row is damaged", cure="draw it again")

    monkeypatch.setattr(store, "rows", damaged)
    found = campaign_sync.sync()
    assert (found.waiting, found.reason) == ((NAME,), "the row is damaged")


def test_a_row_that_was_closed_is_another_one(tmp_path: Path) -> None:
    row = row_of("open", (axis("decode/tok_s/c1", None, None, None),), (lever("x", None),))
    reported.note(tmp_path, row)
    assert not reported.is_held(tmp_path, row, "")
    reported.note(tmp_path, row, "")
    assert reported.is_held(tmp_path, row, "")
    assert not reported.is_held(tmp_path, row.model_copy(update={"closed_by": "ada"}), "")
    (tmp_path / reported.NOTES).write_text("[")
    assert not reported.is_held(tmp_path, row, "")
