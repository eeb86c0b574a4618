"""Runs that are right and not timed: witness and parity let the candidate through, and that is all.

A run of ``--parity-only`` ends so, and one that was interrupted before its first sample.
"""

from __future__ import annotations

from experiments.parity_records import ParityReport
from experiments.records import ArmFailure
from experiments.run_record import RunRecord


def let_through(record: RunRecord) -> bool:
    """Whether witness and parity are done, decide nothing, and no sample was taken yet."""
    begun = record.decision is not None or record.parity is None or bool(record.samples)
    return not begun and not why_ended(record)


def stopped(record: RunRecord) -> bool:
    """Whether it was let through and nothing goes on now: it is right, and has no verdict."""
    return record.status == "interrupted" and let_through(record)


def class_passed(record: RunRecord) -> str:
    """The class with which parity let it through; empty where it did not, or samples followed."""
    if record.parity is None or not let_through(record):
        return ""
    return record.parity.parity_class.value


def why_ended(
    record: RunRecord,
    parity: ParityReport | None = None,
    failures: tuple[ArmFailure, ...] = (),
) -> str:
    """What would decide a run before anything is timed; empty where nothing does.

    Args:
        record: what is on disk.
        parity: a report that is not on disk yet.
        failures: arms that failed in it.
    """
    from experiments.replay import decide_record

    more = {"parity": parity or record.parity, "failures": (*record.failures, *failures)}
    found = decide_record(record.model_copy(update=more))
    return "" if found is None else f"{found.reason}: {found.detail}"


def resume_command(record: RunRecord) -> str:
    """What goes on with the samples."""
    return f"levergate ab {record.spec.lever} --resume {record.run_id}"
