"""A run on disk while it runs: a head, then one fsynced line per event; a kill loses nothing.

``spec.json`` is the run's record before the first sample (spec, plan digest, axes, environment);
``journal.jsonl`` gets one line per sample, lost pair, check, witness, failure, fault, look and
timing; ``verdict.json`` is the decided record. A last line that was cut by a kill was never
reported and is dropped, and said; any other damaged line is an error.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock

from experiments.files import write_atomically
from experiments.home import make_folder
from experiments.journal import Contents, Entry, assemble, encode
from experiments.parity_records import CheckResult, ParityReport
from experiments.records import ArmFailure, Look, LostPair, RunStatus, Sample, Timing
from experiments.run_record import RunRecord
from experiments.spool_reader import HEAD, JOURNAL, VERDICT, Loaded, find, load, read_head, scan
from experiments.witness_records import Witness
from levers.errors import StoreError, UsageError


def new_run_id(now: datetime, digits: str | None = None) -> str:
    """A run's id: sorts by its UTC time, and six random digits keep concurrent runs apart."""
    return f"{now:%Y%m%dT%H%M%S}-{digits or secrets.token_hex(3)}"


class Spool:
    """The one writer of a run's folder. Each method returns once its event is on disk."""

    def __init__(self, folder: Path, lock: filelock.BaseFileLock, head: RunRecord) -> None:
        self.folder = folder
        self._lock = lock
        self._head = head
        self._contents = Contents()
        self._size = 0
        self._file = _open_journal(folder / JOURNAL)

    @classmethod
    def create(cls, runs: Path, head: RunRecord) -> Spool:
        """Begin a run: its folder and its head, before anything is measured.

        Raises:
            StoreError: the folder is there already, or cannot be written.
        """
        make_folder(runs)
        folder = runs / head.run_id
        try:
            folder.mkdir()
        except OSError as error:
            raise StoreError(
                f"cannot begin run {head.run_id} in {runs}: {error.strerror}",
                cure="free space, or set LEVERGATE_HOME to a folder that can be written to",
            ) from error
        lock = _writer_lock(folder)
        write_atomically(folder / HEAD, head.model_dump_json())
        return cls(folder, lock, head)

    @classmethod
    def resume(cls, runs: Path, run_id: str) -> tuple[Spool, Loaded]:
        """Go on with a run that was interrupted; a cut last line is removed from the journal.

        Raises:
            UnknownName: there is no such run.
            UsageError: it is decided, or the beginning of an id fits several.
            StoreError: another process writes to it, or it is damaged.
        """
        folder = find(runs, run_id)
        lock = _writer_lock(folder)
        with contextlib.ExitStack() as unless_it_goes_on:
            unless_it_goes_on.callback(lock.release)
            loaded = load(runs, run_id)
            if loaded.record.status == "decided":
                raise UsageError(
                    f"run {folder.name} is decided", cure="start a new run to measure again"
                )
            size, contents = scan(folder / JOURNAL)
            os.truncate(folder / JOURNAL, size)
            spool = cls(folder, lock, read_head(folder))
            unless_it_goes_on.pop_all()
        spool._size, spool._contents = size, contents
        return spool, loaded

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the run; what was appended stays."""
        os.close(self._file)
        self._lock.release()

    def sample(self, sample: Sample) -> None:
        """Store a sample.

        Raises:
            ValueError: this arm of this pair is on disk already; nothing is counted twice.
        """
        if self._contents.has(sample.pair, sample.arm):
            raise ValueError(f"pair {sample.pair} has its {sample.arm} sample already")
        self._append("sample", sample)

    def drop(self, pair: int, arm: str, why: str) -> None:
        """Leave out a sample whose pair lost its other side; its line stays as evidence."""
        self._append("dropped", {"pair": pair, "arm": arm, "why": why})

    def lost(self, lost: LostPair) -> None:
        """Store that a pair was lost, and why."""
        self._append("lost", lost)

    def witness(self, witness: Witness) -> None:
        """Store an arm's witness."""
        self._append("witness", witness)

    def check(self, check: CheckResult) -> None:
        """Store one parity check as it ends."""
        self._append("check", check)

    def parity(self, report: ParityReport) -> None:
        """Store the whole battery's report."""
        self._append("parity", report)

    def failure(self, failure: ArmFailure) -> None:
        """Store that an arm could not do its work."""
        self._append("failure", failure)

    def fault(self, code: str, text: str) -> None:
        """Store a reason of ``invalid`` that the runner found."""
        self._append("fault", [code, text])

    def warning(self, text: str) -> None:
        """Store what a reader of the verdict must know."""
        self._append("warning", text)

    def look(self, look: Look) -> None:
        """Store a planned look."""
        self._append("look", look)

    def timing(self, timing: Timing) -> None:
        """Store where one sitting's time went; the sittings of a run add up."""
        self._append("timing", timing)

    def forget(self, why: str) -> None:
        """Leave out all that was found before any timing; its lines stay as evidence."""
        self._append("forgotten", why)

    def note(self, name: str, value: Mapping[str, Any]) -> None:
        """Store a fact that the record does not carry, such as the declared loss limits."""
        self._append("note", {"name": name, **value})

    def noted(self, name: str) -> Mapping[str, Any] | None:
        """The last note of that name, also from an earlier sitting."""
        return self._contents.noted(name)

    def record(self, status: RunStatus = "running") -> RunRecord:
        """The record of all that is on disk, not decided yet."""
        return assemble(self._head, self._contents, status)

    def finish(self, record: RunRecord) -> Path:
        """Store the decided record atomically; returns its path."""
        write_atomically(self.folder / VERDICT, record.model_dump_json())
        return self.folder / VERDICT

    def _append(self, kind: str, value: Any) -> None:
        entry = Entry(kind, value)
        line = encode(entry)
        try:
            _write_all(self._file, line)
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise StoreError(
                f"cannot write {self.folder / JOURNAL}: {error.strerror}; "
                f"the {len(self._contents.samples)} samples that were reported are on disk",
                cure=f"free space, then go on with --resume {self._head.run_id}",
            ) from error
        self._size += len(line)
        self._contents.add(entry)


def _open_journal(path: Path) -> int:
    """Open for appending; the size is set by the caller on resume, and is 0 on a new run."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(
            f"cannot open {path}: {error.strerror}", cure="make the run's folder writable"
        ) from error


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _writer_lock(folder: Path) -> filelock.BaseFileLock:
    lock = filelock.FileLock(folder / "writer.lock")
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        raise StoreError(
            f"run {folder.name} is being written by another process",
            cure="wait until it ends, or end it",
        ) from error
    return lock
