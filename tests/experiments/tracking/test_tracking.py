from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import records_factory as factory

from experiments.registry.store import Registry
from experiments.run_record import RunRecord
from experiments.tracking import mirror as tracking
from experiments.tracking import process as tracking_process
from experiments.tracking import store as tracking_store
from levers.errors import BadParameter

pytestmark = pytest.mark.filterwarnings("ignore")
"""MLflow warns at import; these tests read its store through its own client."""

ROOT = Path(__file__).resolve().parents[3]
AT = "2026-03-09T10:00:00+00:00"
NAMES = ("default_on", "out_of_memory", "not_engaged", "interrupted")


def records() -> dict[str, RunRecord]:
    return {name: factory.ALL[name]().model_copy(update={"run_id": name}) for name in NAMES}


def rendered(record: RunRecord) -> tracking.Rendered:
    return {"report.html": "<p>report</p>", "plots/axes.png": b"\x89PNG"}, f"# {record.run_id}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose MLflow store was made while someone's run id was exported."""
    made = tmp_path_factory.mktemp("tracking") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_RUN_ID", "0123456789abcdef0123456789abcdef")
        patch.setenv("MLFLOW_EXPERIMENT_ID", "77")
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        shown = [(record, rendered(record)) for record in records().values()]
        results = tracking.mirror_all(shown, made, timeout_s=120)
    assert [(one.state, one.error) for one in results] == [("mirrored", "")] * 4
    return made


@pytest.fixture(scope="module")
def client(home: Path) -> Any:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_store.default_uri(home))


def runs(client: Any, condition: str = "") -> list[Any]:
    experiment = client.get_experiment_by_name("fa2_nsplits_cap")
    return list(client.search_runs([experiment.experiment_id], condition, max_results=1000))


def of(client: Any, run_id: str) -> tuple[Any, dict[str, Any]]:
    found = runs(client, f"tags.`levergate.run_id` = '{run_id}'")
    (parent,) = [run for run in found if run.data.tags["levergate.role"] == "ab"]
    arms = {run.data.tags["levergate.arm"]: run for run in found if run is not parent}
    assert len(arms) == len(found) - 1
    return parent, arms


def test_an_ab_is_one_run_with_its_arms_as_children(client: Any) -> None:
    parent, arms = of(client, "default_on")
    assert set(arms) == {"ref", "cand"}
    for arm in arms.values():
        assert arm.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert arm.info.experiment_id == parent.info.experiment_id
    tags = parent.data.tags
    assert (tags["levergate.outcome"], tags["levergate.reason"]) == (
        "default-ON",
        "failing-axis-win",
    )
    assert tags["mlflow.note.content"] == "# default_on"
    assert {"levergate.host", "levergate.pid", "levergate.boot_id", "levergate.scope"} <= set(tags)
    assert parent.data.params["workload/sms"] == "48"


def test_each_run_ends_as_its_record_says(client: Any) -> None:
    ended = {name: of(client, name)[0].info.status for name in NAMES}
    assert ended == {
        "default_on": "FINISHED",
        "out_of_memory": "FINISHED",
        "not_engaged": "FAILED",
        "interrupted": "KILLED",
    }
    assert of(client, "out_of_memory")[1]["cand"].info.status == "FAILED"


def test_each_pair_is_a_step(client: Any) -> None:
    parent, arms = of(client, "default_on")
    effect = "effect_percent/decode/tok_s/c8"
    steps = [one.step for one in client.get_metric_history(parent.info.run_id, effect)]
    assert steps == [pair for pair in range(13) if pair != 4]
    values = client.get_metric_history(arms["cand"].info.run_id, "decode/tok_s/c8")
    assert [one.step for one in values] == list(range(13))


def test_the_artifacts_are_there_and_inside_the_home(client: Any, home: Path) -> None:
    parent, arms = of(client, "default_on")
    names = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert names == {
        "default_on.levergate.json",
        "environment.json",
        "plots",
        "report.html",
        "samples.csv",
        "verdict.json",
        "verdict.md",
    }
    assert parent.info.artifact_uri.startswith((home / "mlartifacts").as_uri())
    assert [i.path for i in client.list_artifacts(arms["ref"].info.run_id)] == ["samples.csv"]


def test_a_replay_neither_doubles_runs_nor_metrics(client: Any, home: Path) -> None:
    before = len(runs(client))
    parent, _ = of(client, "default_on")
    client.set_tag(parent.info.run_id, "levergate.mirrored", "")
    wanted = [records()["default_on"], records()["not_engaged"]]
    first, second = tracking.mirror_all([(one, rendered(one)) for one in wanted], home)
    assert (first.state, first.mlflow_run_id) == ("mirrored", parent.info.run_id)
    assert second.state == "already"
    assert len(runs(client)) == before
    effect = "effect_percent/decode/tok_s/c8"
    assert len(client.get_metric_history(parent.info.run_id, effect)) == 12


KILLED = """
import json, os, signal, sys
from pathlib import Path
from experiments.tracking.child import Writer
from experiments.tracking.store import Request
request = Request.model_validate_json(Path(sys.argv[1]).read_text())
payload = json.loads(Path(sys.argv[2]).read_text())
writer = Writer(request)
writer._begin(writer.experiment(payload["experiment"]), payload["parent"], None)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_left_running_by_a_killed_writer_is_ended_and_then_finished(
    client: Any, home: Path, tmp_path: Path
) -> None:
    cut = factory.terminal().model_copy(update={"run_id": "cut-short"})
    folder = tracking.lay_out(tmp_path, cut, *rendered(cut))
    store = tracking_store.default_uri(home)
    request = tracking_store.Request(
        uri=store,
        own=True,
        artifacts=tracking_store.artifact_root(home, store),
        locks=str(home / "locks"),
        timeout_s=60,
        retry_s=5,
        results=str(tmp_path / "results"),
    )
    (tmp_path / "request.json").write_text(request.model_dump_json())
    command = [sys.executable, "-c", KILLED, tmp_path / "request.json", folder / "payload.json"]
    environment = tracking_store.child_environment(os.environ)
    killed = subprocess.run(command, env=environment, cwd=ROOT, check=False)
    assert killed.returncode == -9
    assert of(client, "cut-short")[0].info.status == "RUNNING"

    with Registry.open(tmp_path / "registry.db") as registry:
        registry.save(cut)
        registry.save(records()["default_on"])
        registry.save(records()["not_engaged"])
        registry.invalidate(["not_engaged"], reason="a mark is shown too", name="Ada", at=AT)
        report = tracking.sync(registry, rendered, home, at=AT)
        assert set(report.mirrored) == {"cut-short", "not_engaged"}
        assert report.waiting == ()
        assert registry.unmirrored(store) == ("default_on",)
    parent, arms = of(client, "cut-short")
    assert parent.data.tags["levergate.reaped"] == "its writer died"
    assert (parent.info.status, set(arms)) == ("FINISHED", {"ref", "cand"})


def test_an_absent_server_costs_a_bounded_time_and_the_run_stays_in_the_outbox(
    tmp_path: Path,
) -> None:
    record = factory.default_on()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with Registry.open(tmp_path / "registry.db") as registry:
        registry.save(record)
        started = time.monotonic()
        report = tracking.sync(registry, rendered, tmp_path, uri, at=AT, timeout_s=6)
        assert time.monotonic() - started < tracking_store.CONNECT_TIMEOUT_S + 1
        assert report.waiting == (record.run_id,)
        assert f"no server answers at {uri}" in report.reason


def test_a_server_that_never_answers_costs_a_bounded_time(tmp_path: Path) -> None:
    record = factory.default_on()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        result = tracking.mirror(record, *rendered(record), tmp_path, uri, timeout_s=5)
        assert time.monotonic() - started < 5 + tracking_process.GRACE_S + 3
    assert (result.state, result.held) == ("failed", False)
    assert "no answer within 5 s" in result.error


def test_without_mlflow_a_run_is_kept_and_the_reason_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlflow.py").write_text("raise ImportError('No module named mlflow')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = tracking.mirror(factory.default_on(), {}, "", tmp_path / "home", timeout_s=30)
    assert (result.state, result.error) == ("failed", "ImportError: No module named mlflow")
    assert result.note(AT).error == result.error


def test_a_locked_store_costs_a_bounded_time(home: Path) -> None:
    record = factory.regression().model_copy(update={"run_id": "locked-out"})
    other = sqlite3.connect(home / "mlflow.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        started = time.monotonic()
        result = tracking.mirror(record, *rendered(record), home, timeout_s=8)
        assert time.monotonic() - started < 8 + tracking_process.GRACE_S + 3
    finally:
        other.close()
    assert result.state == "failed"


def test_a_damaged_store_is_an_outcome_too(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)
    result = tracking.mirror(factory.default_on(), {}, "", tmp_path, timeout_s=60)
    assert result.state == "failed"
    assert "file is not a database" in result.error


def test_a_full_disk_is_an_outcome_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tracking, "lay_out", full)
    result = tracking.mirror(factory.default_on(), {}, "", tmp_path)
    assert (result.state, "No space left" in result.error) == ("failed", True)


def test_a_uri_that_mlflow_cannot_use_is_an_outcome_too(tmp_path: Path) -> None:
    record = factory.default_on()
    result = tracking.mirror(record, {}, "", tmp_path, "file:///tmp/mlruns")
    assert (result.state, "no longer takes" in result.error) == ("failed", True)
    with Registry.open(tmp_path / "registry.db") as registry:
        registry.save(record)
        report = tracking.sync(registry, rendered, tmp_path, "mlruns", at=AT)
    assert "no longer takes" in report.reason
    assert report.waiting == (record.run_id,)


def test_nothing_to_sync_starts_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        assert tracking.sync(registry, rendered, tmp_path, at=AT).mirrored == ()
    assert not (tmp_path / "mlflow.db").exists()


def test_the_store_is_absolute_and_a_file_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_store.default_uri(Path("h")) == f"sqlite:///{tmp_path}/h/mlflow.db"
    named = tracking_store.store_uri(tmp_path, {"MLFLOW_TRACKING_URI": "sqlite:///x.db"})
    assert named == f"sqlite:///{tmp_path}/x.db"
    assert tracking_store.store_uri(tmp_path, {}) == f"sqlite:///{tmp_path}/mlflow.db"
    for folder in ("mlruns", "file:///tmp/mlruns"):
        with pytest.raises(BadParameter, match="no longer takes"):
            tracking_store.absolute(folder)


def test_the_writing_process_gets_no_variable_that_leads_elsewhere() -> None:
    given = {"MLFLOW_RUN_ID": "x", "MLFLOW_TRACKING_URI": "y", "PYTHONPATH": "/z", "A": "b"}
    made = tracking_store.child_environment(given)
    assert not {"MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"} & set(made)
    assert made["PYTHONPATH"].endswith(f"{os.pathsep}/z")
    assert (made["A"], made["MLFLOW_DISABLE_TELEMETRY"]) == ("b", "true")


def test_a_process_is_known_to_live_by_boot_pid_and_start() -> None:
    mine = tracking_store.writer_tags(os.getpid())
    assert tracking_store.is_alive(mine)
    assert not tracking_store.is_alive({**mine, "levergate.pid_started": "1.00"})
    assert not tracking_store.is_alive({**mine, "levergate.boot_id": "another"})
    assert not tracking_store.is_alive({**mine, "levergate.pid": "no number"})


def test_the_ui_command_serves_the_store_of_the_home(tmp_path: Path) -> None:
    command = tracking_store.ui_command(tmp_path, 5077)
    words = " ".join(command.argv)
    assert f"--backend-store-uri sqlite:///{tmp_path}/mlflow.db" in words
    assert "--port 5077 --workers 1" in words
    assert command.environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert command.url == "http://127.0.0.1:5077"
    with pytest.raises(BadParameter, match="server already"):
        tracking_store.ui_command(tmp_path, uri="http://mlflow.example")


def test_importing_the_mirror_imports_no_mlflow() -> None:
    code = (
        "import sys, experiments.tracking.mirror;"
        "print(sorted({'mlflow', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert json.loads(done.stdout.decode().replace("'", '"')) == []
