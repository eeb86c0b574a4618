"""The MLflow mirror: a run's record, report and plots, one experiment per lever.

Mirroring runs in a process of its own (:mod:`experiments.tracking.child`) with a hard time limit.
A store that is dead, locked or absent is an outcome, never an exception: the run stays in the
registry's outbox, and :func:`sync` writes it later. MLflow is never read for a decision.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from experiments.registry.marks import MirrorNote
from experiments.registry.store import Registry
from experiments.requests import SyncReport
from experiments.run_record import RunRecord
from experiments.tracking.artifacts import Files, Rendered, lay_out, lay_out_files
from experiments.tracking.payload import Payload
from experiments.tracking.process import talk
from experiments.tracking.store import (
    absolute,
    default_uri,
)
from experiments.values import Value
from levers.errors import BadParameter

Key: TypeAlias = tuple[str, str, str]
"""What a run, stack or row is found by in MLflow: id, experiment, version."""

TIMEOUT_S = 60.0
"""Making a fresh database takes 7-10 s on two cores, and importing mlflow 3 s."""


class MirrorResult(Value):
    """How the mirroring of one run ended; ``error`` says why MLflow does not hold it."""

    run_id: str
    state: Literal["mirrored", "already", "failed"]
    uri: str
    digest: str = ""
    mlflow_run_id: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def held(self) -> bool:
        """Whether MLflow holds the run now."""
        return self.state != "failed"

    def note(self, at: str) -> MirrorNote:
        """What the registry keeps of it."""
        return MirrorNote(
            run_id=self.run_id,
            uri=self.uri,
            digest=self.digest,
            mlflow_run_id=self.mlflow_run_id,
            error=self.error,
            tried_at=at,
        )


def mirror(
    record: RunRecord,
    files: Files,
    description: str,
    home: Path,
    uri: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> MirrorResult:
    """Write one run to MLflow; doing so twice leaves one copy.

    Args:
        record: the run.
        files: artifacts by path, such as ``report.html``; record, samples, environment and verdict
            are added.
        description: Markdown for the run's page.
        home: ``$LEVERGATE_HOME``, whose store is used unless ``uri`` names another.
        uri: a tracking URI, or None.
        timeout_s: after this time the run stays in the outbox, in seconds.

    A URI that MLflow cannot use is an outcome too: the measuring was paid for.
    """
    return mirror_all([(record, (files, description))], home, uri, timeout_s)[0]


def mirror_all(
    runs: Iterable[tuple[RunRecord, Rendered]],
    home: Path,
    uri: str | None = None,
    timeout_s: float = TIMEOUT_S,
    versions: Mapping[str, str] | None = None,
) -> tuple[MirrorResult, ...]:
    """Write several runs in one process, within one time limit.

    ``versions`` names the version of a run by its id, where it is not the record's digest.
    """
    started = time.monotonic()
    items = list(runs)
    digests = {record.run_id: record.content_digest() for record, _ in items}
    store, problem = _store(uri, home)
    lines: list[dict[str, Any]]
    if problem:
        lines = [{"fault": problem}]
    else:
        lines = _written(items, home, store, timeout_s, versions or {})
    said = {line["run_id"]: line for line in lines if "run_id" in line}
    fault = next((line["fault"] for line in lines if "fault" in line), "")
    spent = round(time.monotonic() - started, 3)
    missing: dict[str, Any] = {
        "state": "failed",
        "error": fault or f"no answer within {timeout_s:.0f} s",
    }
    return tuple(
        MirrorResult(
            **{"seconds": spent, **said.get(run_id, {"run_id": run_id, **missing})},
            uri=store,
            digest=digest,
        )
        for run_id, digest in digests.items()
    )


def hand_over(
    work: Path,
    folders: Sequence[Path],
    home: Path,
    uri: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Have folders that are laid out written, each one run; why one is not held, or empty."""
    store, problem = _store(uri, home)
    if problem:
        return problem
    lines = talk(work, home, store, timeout_s, folders=folders)
    said = {line["run_id"]: line for line in lines if "run_id" in line}
    fault = next((line["fault"] for line in lines if "fault" in line), "")
    missing = {"error": fault or f"no answer within {timeout_s:.0f} s"}
    return next(filter(None, (said.get(f.name, missing).get("error", "") for f in folders)), "")


def hand_over_one(payload: Payload, files: Files, home: Path, uri: str | None = None) -> str:
    """Lay one run out and have it written; why MLflow does not hold it, or empty.

    Args:
        payload: what MLflow will hold of it.
        files: artifacts by path.
        home: ``$LEVERGATE_HOME``, whose store is used unless ``uri`` names another.
        uri: a tracking URI, or None.
    """
    with tempfile.TemporaryDirectory(prefix="levergate-") as work:
        folder = lay_out_files(Path(work) / "runs", payload, files)
        return hand_over(Path(work), [folder], home, uri)


def _store(uri: str | None, home: Path) -> tuple[str, str]:
    """The store's absolute URI, and why it cannot be used."""
    try:
        return absolute(uri or default_uri(home)), ""
    except BadParameter as error:
        return uri or "", str(error)


def _written(
    items: Sequence[tuple[RunRecord, Rendered]],
    home: Path,
    store: str,
    timeout_s: float,
    versions: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Lay out the runs and hand them to the writing process; a full disk is an answer too."""
    try:
        with tempfile.TemporaryDirectory(prefix="levergate-") as work:
            folders = [
                lay_out(Path(work) / "runs", record, *shown, versions.get(record.run_id))
                for record, shown in items
            ]
            return talk(Path(work), home, store, timeout_s, folders=folders)
    except OSError as error:
        return [{"fault": f"{type(error).__name__}: {error}"}]


def sync(
    registry: Registry,
    render: Callable[[RunRecord], Rendered],
    home: Path,
    uri: str | None = None,
    *,
    at: str,
    timeout_s: float = TIMEOUT_S,
) -> SyncReport:
    """Write all ended runs that MLflow lacks: the store itself is asked, not our notes of it.

    Args:
        registry: where the runs are.
        render: artifacts and description of a run.
        home: ``$LEVERGATE_HOME``.
        uri: a tracking URI, or None for the store in the home.
        at: ISO time of the attempt.
        timeout_s: limit for asking, and again for each run that is written, in seconds.
    """
    store, fault = _store(uri, home)
    ended = registry.ended()
    if not ended:
        return SyncReport(reason=fault)
    missing: list[str] = []
    if not fault:
        missing, fault = _missing(tuple(ended), home, store, timeout_s)
    if fault:
        return SyncReport(waiting=registry.unmirrored(store), reason=fault)
    records = [registry.load(run_id) for run_id in missing]
    limit = timeout_s * max(1, len(records))
    shown = [(record, render(record)) for record in records]
    versions = {one.run_id: one.version for one in ended}
    results = mirror_all(shown, home, store, limit, versions) if shown else ()
    for result in results:
        registry.note_mirror(result.note(at))
    return SyncReport(
        mirrored=tuple(one.run_id for one in results if one.held),
        waiting=tuple(one.run_id for one in results if not one.held),
        reason=next((one.error for one in results if not one.held), ""),
    )


def missing(
    known: Sequence[Key], home: Path, uri: str | None = None, timeout_s: float = TIMEOUT_S
) -> tuple[list[str], str]:
    """The ids among these that the store does not hold as they are, or why it cannot be asked.

    Args:
        known: id, experiment and version of each.
        home: ``$LEVERGATE_HOME``, whose store is asked unless ``uri`` names another.
        uri: a tracking URI, or None.
        timeout_s: limit for asking.
    """
    store, fault = _store(uri, home)
    return ([], fault) if fault else _missing(tuple(known), home, store, timeout_s)


def _missing(
    known: tuple[Key, ...], home: Path, store: str, timeout_s: float
) -> tuple[list[str], str]:
    try:
        with tempfile.TemporaryDirectory(prefix="levergate-") as work:
            lines = talk(Path(work), home, store, timeout_s, known=known)
    except OSError as error:
        return [], f"{type(error).__name__}: {error}"
    for line in lines:
        if "missing" in line:
            return list(line["missing"]), ""
    faults = [line["fault"] for line in lines if "fault" in line]
    return [], faults[0] if faults else f"no answer within {timeout_s:.0f} s"
