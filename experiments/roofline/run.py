"""``roofline``: the profile of a stored run or stack, recorded on request and found again.

The profile of an A/B lies in the run's folder (:mod:`experiments.profile_store`) and goes into its
bundle; a stack carries its own in its record.
"""

from __future__ import annotations

from experiments import held, naming, pipeline, prepare, profile_store, run_setup
from experiments.arms import levers_of
from experiments.home import Home
from experiments.profiling_records import Profile
from experiments.requests import Listener
from experiments.roofline.task import Profiled, profiled
from experiments.run_record import RunRecord
from experiments.stack import run as stack_run
from experiments.stack import store as stack_store
from experiments.stack.records import StackRecord
from levers.errors import BadParameter, UsageError


def profile_of(run: str) -> tuple[str, Profile]:
    """The full id of a run or stack, and its profile.

    Raises:
        UnknownName: there is no such run or stack.
        UsageError: it was never profiled; says how to record one.
    """
    where = pipeline.home(reading=True)
    stack = _stack(where, run)
    if stack is not None:
        if stack.profile is None:
            raise _unrecorded(stack.stack_id)
        return stack.stack_id, stack.profile
    record = pipeline.show(run)
    profile = profile_store.found(where, record.run_id)
    if profile is None:
        raise _unrecorded(record.run_id)
    return record.run_id, profile


def record(run: str, listener: Listener) -> tuple[str, Profile]:
    """Profile the candidate of a stored run, or a whole stack, and keep it with the run.

    Raises:
        UnknownName: there is no such run or stack.
        UsageError: the device or the versions are others than the run's.
        BadParameter: the process could not be profiled.
    """
    where = pipeline.home()
    stack = _stack(where, run)
    if stack is not None:
        return stack.stack_id, _of_stack(where, stack, listener)
    found = pipeline.show(run)
    return found.run_id, _of_run(where, found, listener)


def _unrecorded(run_id: str) -> UsageError:
    return UsageError(
        f"{run_id} was not profiled", cure=f"record it with levergate roofline {run_id} --record"
    )


def _stack(where: Home, run: str) -> StackRecord | None:
    return stack_store.reread(where, run) if naming.kind_of(where, run) == "stack" else None


def _of_run(where: Home, found: RunRecord, listener: Listener) -> Profile:
    """Profile the candidate of a run on the device on which it was measured."""
    device = run_setup.same_device(found)
    comparison = prepare.again(found.spec, device)
    frozen, limit_s = run_setup.frozen_for(comparison, where), run_setup.time_limit_s(comparison)
    samples = [sample for sample in found.samples if sample.arm == "cand"]
    levers = levers_of(found.spec, "cand")
    listener.on_stage("profile", " + ".join(map(str, levers)) or "no lever")
    with held.measuring(device, frozen, where, limit_s, listener, "a profile") as (own, _):
        profile = _taken(profiled(found.spec, levers, "cand", own, samples))
    profile_store.keep(where, found.run_id, profile)
    return profile


def _of_stack(where: Home, stack: StackRecord, listener: Listener) -> Profile:
    """Profile the whole stack and write its record again with the profile in it."""
    if stack.status != "measured":
        raise UsageError(
            f"stack {stack.stack_id} is {stack.status}", cure="a profile is of a measured stack"
        )
    again = stack_run.resumable(stack)
    comparison = again.comparison(stack.spec.rows[stack.spec.whole])
    frozen, limit_s = run_setup.frozen_for(comparison, where), run_setup.time_limit_s(comparison)
    samples, arm = stack.of_whole, stack.spec.rows[stack.spec.whole].arm
    listener.on_stage("profile", stack.spec.rows[stack.spec.whole].name)
    with held.measuring(again.device, frozen, where, limit_s, listener, "a profile") as (
        own,
        _,
    ):
        found = profiled(comparison.spec, stack.spec.levers, arm, own, samples)
    profile = _taken(found)
    folder = stack_store.find(where, stack.stack_id)
    stack_store.save(folder, stack.model_copy(update={"profile": profile}))
    return profile


def _taken(found: Profiled) -> Profile:
    if found.profile is None:
        raise BadParameter(f"no profile: {found.problem}", cure="see the message of the process")
    return found.profile
