"""A person's word beside stored verdicts: which scope an override is about, and what was done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.defaults import DefaultState
from experiments.evidence import VERDICTS, Scope
from experiments.registry.marks import Invalidation
from experiments.requests import OverrideRequest, SyncReport
from experiments.run_record import RunRecord
from levers.errors import UsageError

SHOWN_SCOPES = 4
"""How many scopes a message lists."""


@dataclass(frozen=True, slots=True)
class Invalidated:
    """An invalidation, and how far MLflow shows it."""

    done: Invalidation
    mirror: SyncReport


@dataclass(frozen=True, slots=True)
class Overridden:
    """The default state under a person's word, and how far MLflow shows it."""

    state: DefaultState
    mirror: SyncReport


def scope_of_run(record: RunRecord, lever: str) -> Scope:
    """The scope that a run's verdict is about.

    Raises:
        UsageError: the run is of another lever, or holds no verdict.
    """
    if record.spec.lever != lever:
        raise UsageError(
            f"run {record.run_id} is of lever {record.spec.lever!r}, not {lever!r}",
            cure=f"levergate override {record.spec.lever} --run {record.run_id}",
        )
    decision = record.decision
    if decision is None or record.kind != "ab" or decision.outcome not in VERDICTS:
        found = record.status if decision is None else f"{record.kind}: {decision.outcome}"
        raise UsageError(
            f"run {record.run_id} holds no verdict ({found}), so there is nothing to override",
            cure="name a run that ended default-ON, gated-OFF or terminal",
        )
    return Scope.of(record)


def chosen_scope(states: Sequence[DefaultState], asked: OverrideRequest) -> Scope:
    """The one scope of a lever that fits the workload and setting that were asked for.

    Raises:
        UsageError: no verdict fits, or several do; the message lists what there is.
    """
    states = [state for state in states if state.run_id or "invalidated" in state.flags]
    fitting = [
        state
        for state in states
        if asked.workload in (None, state.scope.workload)
        and asked.setting in (None, state.scope.setting)
    ]
    if len(fitting) == 1:
        return fitting[0].scope
    if not states:
        cure = f"measure it first: levergate ab {asked.lever}"
        raise UsageError(f"{asked.lever} has no verdict to override", cure=cure)
    if not fitting:
        asked_for = f"setting {asked.setting or 'any'} on workload {asked.workload or 'any'}"
        cure = f"it has verdicts for {_listed(states)}"
        raise UsageError(f"{asked.lever} has no verdict for {asked_for}", cure=cure)
    raise UsageError(
        f"{len(fitting)} scopes of {asked.lever} fit",
        cure=f"pick one with --run RUN (or --workload, --setting): {_listed(fitting)}",
    )


def _listed(states: Sequence[DefaultState]) -> str:
    named = [
        f"{one.scope}{_apart(one, states)} (run {one.run_id or 'invalidated'})"
        for one in states[:SHOWN_SCOPES]
    ]
    return ", ".join(named) + (", ..." if len(states) > SHOWN_SCOPES else "")


def _apart(state: DefaultState, states: Sequence[DefaultState]) -> str:
    """The parameters that tell this scope from others of the same words."""
    alike = [one.scope for one in states if str(one.scope) == str(state.scope)]
    mine = state.scope.parameters
    names = sorted({name for scope in alike for name in scope.parameters})
    differ = [
        f"{name}={mine.get(name, '-')}"
        for name in names
        if len({str(scope.parameters.get(name)) for scope in alike}) > 1
    ]
    return f" with {' '.join(differ)}" if differ else ""
