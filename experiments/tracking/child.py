"""The process that writes to MLflow: the only place that imports it.

Started by :mod:`experiments.tracking.mirror` with a request file, in a process group of its own
and with a hard time limit, so that a dead or hanging store can cost the caller nothing but that
time. Writing a run again leaves one copy: runs are found by their tag, metrics carry fixed times
and steps.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import tenacity

from experiments.tracking.store import SQLITE, Request, is_alive, writer_tags

Json = dict[str, Any]

BATCH_METRICS, BATCH_NAMES = 1000, 100
"""MLflow's limits of one ``log_batch``: metrics, and parameters or tags."""

PAGE = 1000

GARBAGE_FROM = 50_000
"""New objects from which garbage is looked for: at the usual 700, and once more at the end, finding
none among what MLflow's import made took a fourth of this process's time."""

SIDE_FILES = ("journal", "wal", "shm")
"""What SQLite may leave beside a database whose writing failed."""


class Writer:
    """One MLflow store, opened once."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.me = writer_tags(os.getpid())
        with self.locked("making"):
            self.client = self._opened()

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold one of this home's locks; the process's own limit ends a wait that is too long."""
        folder = Path(self.request.locks)
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / f"mlflow-{name}.lock", timeout=self.request.timeout_s):
            yield

    def retried(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Try again while the store is locked or away, within the time that was given."""
        from mlflow.exceptions import MlflowException

        return tenacity.Retrying(
            stop=tenacity.stop_after_delay(self.request.retry_s),
            wait=tenacity.wait_exponential(multiplier=0.2, max=2.0),
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, MlflowException) and is_transient(str(error))
            ),
            reraise=True,
        )(call, *args, **named)

    def _opened(self) -> Any:
        """The client of a ready store; a local one is made, put into WAL mode and upgraded."""
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        uri = self.request.uri
        if self.request.own:
            _make(Path(uri.removeprefix(SQLITE)))
        try:
            client = MlflowClient(tracking_uri=uri)
            self.retried(client.search_experiments, max_results=1)
        except MlflowException as error:
            if not (self.request.own and "out-of-date database schema" in str(error)):
                raise
            upgrade = [sys.executable, "-m", "mlflow", "db", "upgrade", uri]
            subprocess.run(upgrade, check=True, capture_output=True, timeout=self.request.timeout_s)
            client = MlflowClient(tracking_uri=uri)
        return client

    # --- experiments and runs ----------------------------------------------------------------

    def experiment(self, name: str) -> str:
        """The id of a lever's experiment, made or restored where needed."""
        with self.locked("experiments"):
            found = self.retried(self.client.get_experiment_by_name, name)
            if found is None:
                root = self.request.artifacts
                location = f"{root}/{name}" if root else None
                return str(self.client.create_experiment(name, artifact_location=location))
            if found.lifecycle_stage != "active":
                self.client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)

    def runs(self, experiments: Sequence[str], condition: str) -> list[Any]:
        """All runs of these experiments that fit."""
        found: list[Any] = []
        token: str | None = None
        while experiments:
            page = self.retried(
                self.client.search_runs,
                list(experiments),
                condition,
                max_results=PAGE,
                page_token=token,
            )
            found += page
            token = page.token
            if not token:
                break
        return found

    def write(self, folder: Path) -> Json:
        """Write one run with its arms and artifacts, or finish one that was cut short."""
        payload: Json = json.loads((folder / "payload.json").read_text(encoding="utf-8"))
        run_id = payload["run_id"]
        experiment = self.experiment(payload["experiment"])
        with self.locked(f"run-{payload['version'][:1]}"):
            mine = self.runs([experiment], f"tags.`levergate.run_id` = '{run_id}'")
            role = payload["parent"]["role"]
            parent = next((run for run in mine if _tag(run, "role") == role), None)
            if parent is not None and _tag(parent, "mirrored") == payload["version"]:
                return {"state": "already", "mlflow_run_id": parent.info.run_id}
            parent_id = self._begin(experiment, payload["parent"], parent)
            for arm in payload["arms"]:
                name = arm["tags"]["levergate.arm"]
                child = next((run for run in mine if _tag(run, "arm") == name), None)
                arm["tags"]["mlflow.parentRunId"] = parent_id
                self._whole(experiment, arm, child, folder / "arms" / name)
            self._fill(parent_id, payload["parent"], folder / "files")
            self._set(parent_id, {"levergate.mirrored": payload["version"]})
            self._end(parent_id, payload["parent"])
        return {"state": "mirrored", "mlflow_run_id": parent_id}

    def _whole(self, experiment: str, run: Json, found: Any, files: Path) -> None:
        run_id = self._begin(experiment, run, found)
        self._fill(run_id, run, files)
        self._end(run_id, run)

    def _begin(self, experiment: str, run: Json, found: Any) -> str:
        tags = {**run["tags"], **self.me}
        if found is not None:
            run_id = str(found.info.run_id)
            self.client.update_run(run_id, status="RUNNING", name=run["name"])
            self._set(run_id, tags)
            return run_id
        made = self.retried(
            self.client.create_run,
            experiment,
            start_time=run["start_ms"],
            tags=tags,
            run_name=run["name"],
        )
        return str(made.info.run_id)

    def _set(self, run_id: str, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        rows = [RunTag(key, value) for key, value in tags.items()]
        for part in _parts(rows, BATCH_NAMES):
            self.retried(self.client.log_batch, run_id, tags=part)

    def _fill(self, run_id: str, run: Json, files: Path) -> None:
        from mlflow.entities import Metric, Param

        params = [Param(key, value) for key, value in run["params"].items()]
        for part in _parts(params, BATCH_NAMES):
            self.retried(self.client.log_batch, run_id, params=part)
        points = [Metric(*point) for point in run["metrics"]]
        for part in _parts(points, BATCH_METRICS):
            self.retried(self.client.log_batch, run_id, metrics=part)
        if files.is_dir():
            self.retried(self.client.log_artifacts, run_id, str(files))

    def _end(self, run_id: str, run: Json) -> None:
        if run["status"] != "RUNNING":
            self.retried(self.client.set_terminated, run_id, run["status"], run["end_ms"])

    # --- what is there, and what was left ----------------------------------------------------

    def missing(self, known: Sequence[Sequence[str]]) -> list[str]:
        """The ids among (id, experiment, version) that the store does not hold whole.

        Only what is whole has its version in its tags, and the arms of a run have none.
        """
        held: set[tuple[str, str]] = set()
        for experiment in {one[1] for one in known}:
            found = self.retried(self.client.get_experiment_by_name, experiment)
            if found is not None and found.lifecycle_stage == "active":
                for run in self.runs([found.experiment_id], "tags.`levergate.role` != 'arm'"):
                    held.add((_tag(run, "run_id"), _tag(run, "mirrored")))
        return [run_id for run_id, _, version in known if (run_id, version) not in held]

    def reap(self) -> list[str]:
        """End the runs that a process of this host left RUNNING when it died."""
        experiments = self.retried(self.client.search_experiments, max_results=PAGE)
        host = self.me["levergate.host"]
        condition = f"attributes.status = 'RUNNING' and tags.`levergate.host` = '{host}'"
        reaped = []
        for run in self.runs([one.experiment_id for one in experiments], condition):
            if not is_alive(run.data.tags):
                self._set(run.info.run_id, {"levergate.reaped": "its writer died"})
                self.client.set_terminated(run.info.run_id, "KILLED")
                reaped.append(run.info.run_id)
        return reaped


def is_transient(said: str) -> bool:
    """Whether a store's words mean that trying again may help."""
    signs = ("database is locked", "Connection refused", "Max retries", "timed out", "503", "429")
    return any(sign in said for sign in signs)


def _make(path: Path) -> None:
    """Make the local store beside its place and move it there whole, since making it takes 10 s.

    In WAL mode writers and readers do not block each other (10.6 -> 8 ms a call).
    """
    from mlflow import MlflowClient

    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.making")
    part.unlink(missing_ok=True)
    try:
        MlflowClient(tracking_uri=f"{SQLITE}{part}").search_experiments(max_results=1)
        part.replace(path)
    finally:  # on a full disk a half-made store would hold what little room there is
        for left in (part, *(part.with_name(f"{part.name}-{kind}") for kind in SIDE_FILES)):
            left.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path, timeout=30.0)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def _tag(run: Any, name: str) -> str:
    return str(run.data.tags.get(f"levergate.{name}", ""))


def _parts(rows: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def main(path: str) -> int:
    """Do what the request says, one JSON line a result; the process boundary of MLflow."""
    request = Request.model_validate_json(Path(path).read_text(encoding="utf-8"))
    signal.alarm(max(1, round(request.timeout_s)))
    out = Path(request.results)
    started = time.monotonic()
    try:
        writer = Writer(request)
        _say(out, {"reaped": writer.reap()})
        if request.known is not None:
            _say(out, {"missing": writer.missing(request.known)})
    except Exception as error:  # noqa: BLE001 - the process boundary: the caller gets the words
        _say(out, {"fault": _words(error), "traceback": traceback.format_exc()})
        return 1
    for folder in request.folders:
        try:
            result = writer.write(Path(folder))
        except Exception as error:  # noqa: BLE001 - one run's fault must not cost the others
            result = {"state": "failed", "error": _words(error)}
        seconds = time.monotonic() - started
        _say(out, {"run_id": Path(folder).name, "seconds": round(seconds, 3), **result})
    return 0


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}"


def _say(out: Path, line: Json) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    gc.set_threshold(GARBAGE_FROM)
    atexit.register(gc.freeze)
    sys.exit(main(sys.argv[1]))
