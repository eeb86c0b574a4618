"""Several settings of one lever in one run: from the request to the record of the selection.

Each setting has a spool of its own below ``families/<id>`` of the home: its samples, parity and
witnesses, with its reading, as a run of kind ``family``. They are not in the registry, so that no
state is ever drawn from a selection; the winner's run says what became of each.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from experiments import environment, preflight, prepare, run_setup, token_models
from experiments.binding import cache_of, watched
from experiments.decide.order import decide_before_timing
from experiments.environment import Device
from experiments.executor import Executor
from experiments.family import resume as family_resume
from experiments.family import store as family_store
from experiments.family.outcome import BUDGET_SHARE, record_of
from experiments.family.records import FamilyHead, FamilyRecord
from experiments.family.rules import looks_of_family
from experiments.family.stage import Member, Stage
from experiments.frozen import FrozenEnvironment
from experiments.held import measuring
from experiments.home import Home, make_folder
from experiments.parity_crew import crew_of
from experiments.prepare import Comparison
from experiments.ranks.needs import packages_of
from experiments.records import Decision
from experiments.registry.store import Registry
from experiments.replay import evidence_of
from experiments.requests import AbRequest, Listener
from experiments.run_record import RunRecord
from experiments.runner import interruptible
from experiments.sitting import Sitting
from experiments.spool import Spool, new_run_id
from experiments.telemetry import Sampler
from experiments.values import digest_of


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection that is resolved: one comparison for each setting, on one device and seed.

    ``left_out`` are, for each, the models on which its tokens are not compared, in words.
    """

    family_id: str
    device: Device
    comparisons: tuple[Comparison, ...]
    budget_s: float | None
    left_out: tuple[tuple[str, ...], ...] = ()

    @property
    def one(self) -> Comparison:
        """Any of the comparisons: workload, looks, seed and policy are the same in all."""
        return self.comparisons[0]


def run(
    request: AbRequest,
    settings: Sequence[str],
    home: Home,
    registry: Registry,
    listener: Listener,
) -> FamilyRecord:
    """Measure all settings against one reference and choose; each one's evidence is on disk.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        StoreError: the selection cannot be written.
        KeyboardInterrupt: it was interrupted; its id is in the message, to go on with.
    """
    selection = _resolve(request, settings, registry, listener)
    _check_room(selection, home, listener)
    with contextlib.ExitStack() as spools, interruptible():
        members = _begin(selection, home, spools, request)
        return _ended(selection, members, home, listener)


def resume(head: FamilyHead, home: Home, listener: Listener) -> FamilyRecord:
    """Go on with a selection that was interrupted; its budget counts from here.

    Raises:
        UsageError: it cannot be gone on with here; says why.
        StoreError: its evidence is damaged, or cannot be written.
        KeyboardInterrupt: it was interrupted again.
    """
    with contextlib.ExitStack() as spools, interruptible():
        members, device = family_resume.members_of(head, home, spools)
        rounds = family_resume.whole_rounds(members)
        listener.on_stage("resume", f"{rounds} rounds of {len(members)} settings are on disk")
        comparisons = tuple(member.comparison for member in members)
        selection = Selection(head.family_id, device, comparisons, head.budget_s)
        return _ended(selection, members, home, listener, rounds)


def _ended(
    selection: Selection, members: list[Member], home: Home, listener: Listener, rounds: int = 0
) -> FamilyRecord:
    """Measure until the selection has ended; the evidence of each setting is then decided."""
    began, name = time.monotonic(), selection.family_id
    try:
        stopped, rounds = _select(selection, members, home, listener, rounds)
    except KeyboardInterrupt as interrupted:
        said = f"selection {name} was interrupted; go on with --resume {name}"
        raise KeyboardInterrupt(said) from interrupted
    record = record_of(name, members, stopped, rounds, time.monotonic() - began)
    for member, result in zip(members, record.settings, strict=True):
        _finish(member, result.decision)
    return record


# --- before the first process -------------------------------------------------------------------


def _resolve(
    request: AbRequest, settings: Sequence[str], registry: Registry, listener: Listener
) -> Selection:
    """Check every setting before anything is measured."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = environment.find_device(request.device, visible=visible, ranks=request.ranks)
    seeded = replace(request, seed=seed_of(request, settings))
    first = prepare.compare(replace(seeded, cand=settings[0]), device)
    stack = run_setup.stack_for(registry, first, listener, request.beside)
    looks = looks_of_family(prepare.looks_up_to(request.max_pairs)[-1])
    budget_s = None if request.budget_s is None else request.budget_s * BUDGET_SHARE
    compared = [prepare.compare(replace(seeded, cand=one), device, stack) for one in settings]
    found = token_models.added_to_each(compared, request.tokens_on)
    for text in (text for _, texts in found for text in texts):
        listener.on_warning(text)
    comparisons = tuple(_with_looks(one, looks) for one, _ in found)
    left_out = tuple(texts for _, texts in found)
    return Selection(new_run_id(datetime.now(UTC)), device, comparisons, budget_s, left_out)


def seed_of(request: AbRequest, settings: Sequence[str]) -> int:
    """The seed asked for, else one of this family's own: kept parity results are found again."""
    if request.seed is not None:
        return request.seed
    named = (request.lever, request.ref, *settings, request.workload or "")
    return int(digest_of(" ".join(named))[:7], 16)


def _with_looks(comparison: Comparison, looks: tuple[int, ...]) -> Comparison:
    return replace(comparison, spec=comparison.spec.model_copy(update={"looks": looks}))


def _check_room(selection: Selection, home: Home, listener: Listener) -> None:
    one = selection.one
    needs, *_ = (run_setup.check_fits(each, home) for each in selection.comparisons)
    rounds, arms = one.spec.looks[-1], len(selection.comparisons) + 1
    preflight.check_budget(
        selection.budget_s, one.spec.looks[0] * arms * needs.seconds_per_sample, BUDGET_SHARE
    )
    seconds, budget_s = rounds * arms * needs.seconds_per_sample, selection.budget_s
    listener.on_estimate(seconds if budget_s is None else min(seconds, budget_s), rounds)


def _begin(
    selection: Selection, home: Home, spools: contextlib.ExitStack, request: AbRequest
) -> list[Member]:
    folder = make_folder(family_store.folder(home, selection.family_id))
    frozen = _frozen(selection, home)
    packages = packages_of(selection.comparisons[0].spec.parameters)
    here = environment.describe(
        selection.device, frozen.recorded(), frozen.removed, frozen.facts(), packages
    )
    members = []
    for comparison, texts in zip(selection.comparisons, selection.left_out, strict=True):
        head = run_setup.head_of(comparison, here).model_copy(update={"kind": "family"})
        spool = spools.enter_context(Spool.create(folder, head))
        for text in texts:
            spool.warning(text)
        members.append(Member(comparison.spec.cand, comparison, spool))
    begun = FamilyHead(
        family_id=selection.family_id,
        runs=tuple((member.setting, member.spool.folder.name) for member in members),
        budget_s=selection.budget_s,
        request=request,
    )
    family_store.begin(home, begun)
    return members


def _frozen(selection: Selection, home: Home) -> FrozenEnvironment:
    """One environment for all; where one setting needs fresh interpreters, all get them."""
    found = [run_setup.frozen_for(comparison, home) for comparison in selection.comparisons]
    one = next((one for one in found if one.fresh_interpreter), found[0])
    return watched(one, *selection.comparisons)


# --- the measured part --------------------------------------------------------------------------


def _select(
    selection: Selection, members: list[Member], home: Home, listener: Listener, rounds: int
) -> tuple[str, int]:
    """Why the selection ended, and after how many rounds."""
    frozen, limit_s = _frozen(selection, home), run_setup.time_limit_s(selection.one)
    with measuring(selection.device, frozen, home, limit_s, listener) as (executor, sampler):
        if not rounds:
            run_setup.room_held(selection.one, home, selection.family_id)
        sittings = _preliminaries(members, home, executor, sampler, listener)
        left = [member for member in members if member.living]
        if len(left) < 2:
            return "only one setting may be timed" if left else "no setting may be timed", rounds
        stage = Stage(
            members=members,
            executor=executor,
            limits=sittings[members.index(left[0])].limits(),
            listener=listener,
            watch=lambda seconds: sampler.look(executor.processes, seconds),
            budget_s=selection.budget_s,
            rounds=rounds,
        )
        listener.on_stage("selection", f"{len(left)} settings, one reference")
        return stage.go(), stage.rounds


def _preliminaries(
    members: list[Member],
    home: Home,
    executor: Executor,
    sampler: Sampler,
    listener: Listener,
) -> list[Sitting]:
    """Witness and parity of each setting; the reference is witnessed once for all."""
    sittings = []
    timed = any(member.spool.record().samples for member in members)
    for member in members:
        here = member.spool.record().environment
        listener.on_stage("setting", f"{member.spec.lever}={member.setting}")
        sitting = Sitting(
            comparison=member.comparison,
            spool=member.spool,
            executor=executor,
            sampler=sampler,
            cache=cache_of(home, here, member.comparison, executor.frozen),
            listener=listener,
            crew=crew_of(
                member.comparison, executor.frozen, home, time_limit_s=executor.time_limit_s
            ),
        )
        sitting.bind(timed=timed)
        _share_witness(members, member)
        record = member.spool.record()
        sittings.append(sitting)
        if record.samples or member.reading is not None:  # gone on with: it was let through
            continue
        if record.faults:  # unmet: nothing of it may run here
            member.reading = decide_before_timing(evidence_of(record, None))
        elif sitting.before_timing():
            member.reading = sitting.decision
    return sittings


def _share_witness(members: list[Member], member: Member) -> None:
    """Take over the reference's witness from a setting that has had it."""
    found = (one for other in members for one in other.spool.record().witnesses)
    witness = next((one for one in found if one.arm == "ref"), None)
    if witness is not None:
        member.spool.witness(witness)


# --- what came of it ----------------------------------------------------------------------------


def _finish(member: Member, decision: Decision) -> None:
    """Store the setting's evidence as a decided record of kind ``family``."""
    record = member.spool.record()
    decided = record.model_copy(update={"status": "decided", "decision": decision})
    member.spool.finish(RunRecord.model_validate(decided.model_dump()))
