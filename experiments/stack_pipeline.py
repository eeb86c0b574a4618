"""The steps of ``stack`` in order: measure, store, mirror; beside :mod:`experiments.pipeline`."""

from __future__ import annotations

import os

from experiments import pipeline, stack_reports, stack_run, stack_store, stack_tracking
from experiments.files import write_atomically
from experiments.registry import Registry
from experiments.requests import Listener
from experiments.stack_records import StackRecord
from experiments.stack_requests import StackRequest


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
    folder = stack_store.find(where, record.stack_id)
    text = stack_reports.markdown(record)
    files = stack_reports.files(record)
    write_atomically(folder / "stack.md", text)
    write_atomically(folder / "report.html", stack_reports.page(record))
    listener.on_stage("save", "record, bundle and MLflow")
    uri = os.environ.get(pipeline.TRACKING_VARIABLE)
    problem = stack_tracking.mirror(record, files, text, where.root, uri)
    if problem:
        listener.on_warning(
            f"MLflow does not hold this stack ({problem}); its bundle is in {folder}"
        )
    return record


def show(stack_id: str) -> StackRecord:
    """A stack by its id or a beginning of it.

    Raises:
        UnknownName: there is none.
    """
    return stack_store.reread(pipeline.home(reading=True), stack_id)
