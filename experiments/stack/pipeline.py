"""The steps of ``stack`` in order: measure, store, mirror; beside :mod:`experiments.pipeline`."""

from __future__ import annotations

import os
from pathlib import Path

from experiments import pipeline
from experiments.files import write_atomically
from experiments.home import Home
from experiments.registry.store import Registry
from experiments.requests import ImportRow, Listener, SyncReport
from experiments.stack import reports as stack_reports
from experiments.stack import run as stack_run
from experiments.stack import store as stack_store
from experiments.stack import tracking as stack_tracking
from experiments.stack.records import StackRecord
from experiments.stack.requests import StackRequest
from levers.errors import StoreError, UsageError


def stack(request: StackRequest, listener: Listener) -> StackRecord:
    """Measure a stack; record, bundle, Markdown and page are on disk, and MLflow has it.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        StoreError: the stack cannot be written; what was reported is on disk.
        KeyboardInterrupt: it was interrupted; ``--resume`` goes on.
    """
    where = pipeline.home()
    with Registry.open(where.registry) as registry:
        record = stack_run.run(request, where, registry, listener)
    listener.on_stage("save", "record, bundle and MLflow")
    problem = _reported(record, where)
    if problem:
        listener.on_warning(problem)
    return record


def _reported(record: StackRecord, where: Home) -> str:
    """Write a stack's Markdown and page and mirror it; says what MLflow lacks, if anything."""
    folder = stack_store.find(where, record.stack_id)
    uri = os.environ.get(pipeline.TRACKING_VARIABLE)
    text = stack_reports.markdown(record)
    files = stack_reports.files(record)
    write_atomically(folder / "stack.md", text)
    write_atomically(folder / "report.html", stack_reports.page(record))
    problem = stack_tracking.mirror(record, files, text, where.root, uri)
    if not problem:
        stack_store.note_mirrored(folder, record, uri or "")
        return ""
    return f"MLflow does not hold this stack ({problem}); its bundle is in {folder}"


def sync() -> SyncReport:
    """Write to MLflow every stack with a last word that it is not known to hold."""
    where = pipeline.home()
    uri = os.environ.get(pipeline.TRACKING_VARIABLE) or ""
    mirrored: list[str] = []
    waiting: list[str] = []
    reason = ""
    for stack_id in stack_store.ids(where):
        try:
            record = stack_store.reread(where, stack_id)
        except StoreError as error:
            waiting.append(stack_id)
            reason = reason or error.message
            continue
        folder = stack_store.find(where, stack_id)
        if record.status == "interrupted" or stack_store.is_mirrored(folder, record, uri):
            continue
        problem = _reported(record, where)
        (waiting if problem else mirrored).append(stack_id)
        reason = reason or problem
    return SyncReport(tuple(mirrored), tuple(waiting), reason)


def export(stack_id: str, path: Path) -> Path:
    """Write a stack's bundle to a file or into a folder.

    Raises:
        UnknownName: there is no such stack.
        UsageError: it has no last word yet.
        StoreError: it cannot be written.
    """
    record = show(stack_id)
    if record.status == "interrupted":
        raise UsageError(
            f"stack {record.stack_id} was interrupted, and is no evidence yet",
            cure=f"levergate stack {record.spec.workload} --resume {record.stack_id}",
        )
    return stack_store.export(record, path)


def import_bundle(path: Path) -> tuple[ImportRow, str]:
    """Take in a stack's bundle; says what MLflow lacks, if anything.

    Raises:
        StoreError: the bundle cannot be used, or another record of that stack is here.
    """
    where = pipeline.home()
    record, new = stack_store.take_in(where, path)
    problem = _reported(record, where) if new else ""
    return ImportRow(str(path), record.stack_id, new), problem


def show(stack_id: str) -> StackRecord:
    """A stack by its id or a beginning of it.

    Raises:
        UnknownName: there is none.
    """
    return stack_store.reread(pipeline.home(reading=True), stack_id)
