"""Going on with a selection that was interrupted: its settings and whole rounds are on disk.

A round that was cut counts for nothing: its samples are dropped, with their lines kept as evidence,
and the round is measured again. What the rules said of a setting is read, not decided again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from experiments import prepare, run_setup, token_models
from experiments.environment import Device
from experiments.family import store as family_store
from experiments.family.records import FamilyHead
from experiments.family.stage import READING, Member
from experiments.home import Home
from experiments.records import Decision
from experiments.run_record import RunRecord
from experiments.spool import Spool
from levers.errors import UsageError

CUT = "the selection was interrupted in this round"


def members_of(
    head: FamilyHead, home: Home, spools: contextlib.ExitStack
) -> tuple[list[Member], Device]:
    """The settings of a selection with their evidence, and the device on which it began.

    Raises:
        UsageError: the selection has ended; another device, stack or lever source than it began on.
        StoreError: another process writes to it, or it is damaged.
    """
    folder, found = family_store.folder(home, head.family_id), []
    device: Device | None = None
    for setting, run_id in head.runs:
        spool, loaded = Spool.resume(folder, run_id)
        spools.enter_context(spool)
        device = device or run_setup.same_device(loaded.record)
        member = Member(setting, prepare.again(loaded.record.spec, device), spool)
        token_models.refuse_changed(
            loaded.record.spec,
            member.comparison.workload,
            device,
            tokens=not loaded.record.samples,
        )
        _as_read(member, loaded.record)
        found.append(member)
    if device is None:
        raise UsageError(f"selection {head.family_id} has no setting", cure="start a new one")
    return found, device


def _as_read(member: Member, record: RunRecord) -> None:
    """What the rules said of a setting when it was last looked at."""
    noted = member.spool.noted(READING)
    if noted is not None:
        said = noted["decision"]
        member.reading = None if said is None else Decision.model_validate(said)
        member.judged = int(noted["judged"])
    member.look = record.looks[-1] if record.looks else None


def whole_rounds(members: Sequence[Member]) -> int:
    """How many rounds stand; the samples of one that was cut are dropped."""
    living = [member for member in members if member.living]
    records = {member.setting: member.spool.record() for member in living}
    numbers = [one.pair for record in records.values() for one in record.samples]
    if not numbers:
        return 0
    last = max(numbers)
    if all(_has_round(record, last) for record in records.values()):
        return last + 1
    for member in living:
        for one in records[member.setting].samples:
            if one.pair == last:
                member.spool.drop(last, one.arm, CUT)
    return last


def _has_round(record: RunRecord, number: int) -> bool:
    """Whether both arms of a round were run; one that failed left no sample."""
    arms = {one.arm for one in record.samples if one.pair == number}
    return bool(record.failures) or {"ref", "cand"} <= arms
