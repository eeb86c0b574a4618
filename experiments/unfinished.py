"""Runs that are only on disk: they run now, or were interrupted before anything was decided."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments import checked, spool_reader
from experiments.requests import HistoryRow
from experiments.run_record import RunRecord
from levers.errors import StoreError


def added(rows: Sequence[HistoryRow], runs: Path, lever: str | None) -> tuple[HistoryRow, ...]:
    """The registry's rows with those of unfinished runs among them, newest first.

    Args:
        rows: what the registry holds.
        runs: the folder of the spools.
        lever: only runs of this lever; of all where None.
    """
    stored = {row.run_id for row in rows}
    more = [
        _row(record)
        for record in _records(runs)
        if record.run_id not in stored and lever in (None, record.spec.lever)
    ]
    return tuple(sorted((*rows, *more), key=lambda row: row.created_at, reverse=True))


def _records(runs: Path) -> Iterator[RunRecord]:
    """What is on disk of each; a damaged one is left to ``show``, which says what is wrong."""
    for run_id in spool_reader.run_ids(runs):
        if not (runs / run_id / spool_reader.VERDICT).is_file():
            with contextlib.suppress(StoreError):
                yield spool_reader.load(runs, run_id).record


def _row(record: RunRecord) -> HistoryRow:
    spec = record.spec
    return HistoryRow(
        record.run_id,
        record.created_at,
        spec.lever,
        spec.ref,
        spec.cand,
        spec.workload,
        record.environment.device_kind,
        record.status,
        beside=tuple(sorted(str(one) for one in spec.stack)),
        parity=checked.class_passed(record),
    )
