"""Going on past a plan: a new run that begins with all the evidence of one that found no verdict.

Only a run whose intervals hold at any time may be extended, and that is chosen before its first
sample: with planned looks, more pairs after an undecided end would be one look too many. A stored
verdict is never written again, so the extension is a run of its own that names the first.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from experiments.files import write_atomically
from experiments.home import make_folder
from experiments.plan import make_plan
from experiments.prepare import looks_up_to
from experiments.records import Outcome
from experiments.requests import AbRequest
from experiments.run_record import RunRecord
from experiments.spool import new_run_id
from experiments.spool_reader import HEAD, JOURNAL, find, load, read_head, scan
from experiments.values import digest_of
from levers.errors import UsageError


def wanted(request: AbRequest, runs: Path) -> bool:
    """Whether a resumed run is asked for more pairs than were planned.

    Raises:
        UsageError: it is asked for another maximum that it cannot have.
        UnknownName: there is no such run.
    """
    if request.resume is None or request.max_pairs is None:
        return False
    record = load(runs, request.resume).record
    planned = record.spec.looks[-1]
    if request.max_pairs == planned:
        return False
    if request.max_pairs < planned:
        raise UsageError(
            f"run {record.run_id} was planned for {planned} pairs, and the plan stands",
            cure="leave out --pairs to go on with it",
        )
    _check(record, planned)
    return True


def _check(record: RunRecord, planned: int) -> None:
    """Refuse what no statistic would bear out."""
    if record.spec.sequential != "anytime":
        raise UsageError(
            f"run {record.run_id} has planned looks up to {planned} pairs: further ones would "
            "raise its rate of false verdicts",
            cure="start a new run, with --sequential anytime if it may have to be extended",
        )
    decision = record.decision
    if decision is not None and decision.outcome is not Outcome.INCONCLUSIVE:
        raise UsageError(
            f"run {record.run_id} ended as {decision.outcome} ({decision.reason}): there is "
            "nothing to extend",
            cure="start a new run to measure again",
        )


def extend(request: AbRequest, runs: Path, now: datetime) -> str:
    """Write the run that goes on where the first ended; returns its id, to be resumed.

    Raises:
        StoreError: the first run is damaged, or the folder cannot be written.
    """
    folder = find(runs, str(request.resume))
    size, contents = scan(folder / JOURNAL)
    spent_s = sum(sample.wall_s for sample in contents.samples.values())
    head = _head(read_head(folder), request, spent_s, now)
    part = make_folder(runs / f".{head.run_id}.part")
    write_atomically(part / JOURNAL, (folder / JOURNAL).read_bytes()[:size].decode())
    write_atomically(part / HEAD, head.model_dump_json())
    part.rename(runs / head.run_id)
    return head.run_id


def _head(first: RunRecord, request: AbRequest, spent_s: float, now: datetime) -> RunRecord:
    """The first run's head with more looks; a budget is for what is still to be measured."""
    looks = looks_up_to(request.max_pairs)
    more = tuple(look for look in looks if look > first.spec.looks[-1])
    spec = first.spec.model_copy(
        update={
            "looks": (*first.spec.looks, *more),
            "budget_s": None if request.budget_s is None else spent_s + request.budget_s,
        }
    )
    plan = make_plan(spec.seed, spec.looks[-1], spec.oracle is not None)
    said = (
        f"extends run {first.run_id} beyond its {first.spec.looks[-1]} pairs; "
        "the intervals hold at any time"
    )
    changes = {
        "run_id": new_run_id(now),
        "created_at": now.isoformat(),
        "spec": spec,
        "plan_digest": digest_of(spec.content_digest() + plan.plan_digest),
        "warnings": (*first.warnings, said),
    }
    return first.model_copy(update=changes)
