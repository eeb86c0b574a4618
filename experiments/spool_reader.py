"""Reading a run's folder: its verdict if there is one, else what its journal holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from experiments.journal import Contents, Entry, assemble
from experiments.records import RunStatus
from experiments.run_record import RunRecord
from levers.errors import StoreError, UnknownName, UsageError

HEAD, JOURNAL, VERDICT = "spec.json", "journal.jsonl", "verdict.json"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A spool as read: the partial record, and whether its last line had been cut."""

    record: RunRecord
    torn: bool
    dropped: tuple[tuple[int, str], ...]


def find(runs: Path, run_id: str) -> Path:
    """The folder of a run, by its id or an unambiguous beginning of it.

    Raises:
        UnknownName: there is none; the message suggests the closest.
        UsageError: the beginning fits several.
    """
    known = run_ids(runs)
    fits = [name for name in known if run_id and name.startswith(run_id)]
    if run_id in fits or len(fits) == 1:
        return runs / (run_id if run_id in fits else fits[0])
    if fits:
        raise UsageError(
            f"run {run_id!r} fits {len(fits)} runs", cure=f"give more: {', '.join(fits[-8:])}"
        )
    raise UnknownName("run", run_id, known)


def run_ids(runs: Path) -> list[str]:
    """The ids of the runs on disk, oldest first; a hidden folder is one that is being written."""
    found = (path.parent.name for path in runs.glob(f"*/{HEAD}"))
    return sorted(name for name in found if not name.startswith("."))


def load(runs: Path, run_id: str) -> Loaded:
    """Read a run without becoming its writer: the verdict if there is one, else what is on disk.

    A run that is not decided reads as ``running`` while its writer lives, else as ``interrupted``.

    Raises:
        UnknownName: there is no such run.
        StoreError: the head or a line other than the last is damaged.
    """
    folder = find(runs, run_id)
    if (folder / VERDICT).is_file():
        return Loaded(read_record(folder / VERDICT), False, ())
    size, contents = scan(folder / JOURNAL)
    journal = folder / JOURNAL
    torn = journal.is_file() and journal.stat().st_size > size
    status: RunStatus = "running" if is_written(folder) else "interrupted"
    record = assemble(read_head(folder), contents, status)
    return Loaded(record, torn, tuple(sorted(contents.dropped)))


def noted(runs: Path, run_id: str, name: str) -> Mapping[str, Any] | None:
    """The last note of that name in a run's journal."""
    _, contents = scan(find(runs, run_id) / JOURNAL)
    return contents.noted(name)


def is_written(folder: Path) -> bool:
    """Whether a living process is the run's writer."""
    import filelock

    probe = filelock.FileLock(folder / "writer.lock")
    try:
        probe.acquire(blocking=False)
    except filelock.Timeout:
        return True
    except OSError:
        return False
    probe.release()
    return False


def read_head(folder: Path) -> RunRecord:
    """The record before the first event."""
    return read_record(folder / HEAD)


def read_record(path: Path) -> RunRecord:
    """One record from its file.

    Raises:
        StoreError: it cannot be read, or is not of this version.
    """
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise StoreError(
            f"{path} is no run record of this version: {error.errors()[0]['msg']}",
            cure="read it with the version of levergate that wrote it",
        ) from error


def scan(journal: Path) -> tuple[int, Contents]:
    """The journal's whole lines: their size in bytes and what they hold."""
    contents, size = Contents(), 0
    data = journal.read_bytes() if journal.is_file() else b""
    lines = data.split(b"\n")[:-1]
    for number, line in enumerate(lines, 1):
        try:
            contents.add(Entry(**json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines) and size + len(line) + 1 == len(data):
                break
            raise StoreError(
                f"{journal} line {number} is damaged: {error}",
                cure="start the run again; this one's evidence cannot be trusted",
            ) from error
        size += len(line) + 1
    return size, contents
