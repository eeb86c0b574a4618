"""The binding run of a campaign: what ships as a whole, found on disk or asked for anew.

It is a stack without the steps between: no lever, all default-ON levers, the whole without each,
and the oracle, in the same blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments import environment
from experiments.campaign import tokens
from experiments.campaign.place import Place
from experiments.defaults import Current
from experiments.home import Home
from experiments.oracle_facts import ORACLE_PACKAGE_FACT
from experiments.registry.store import Registry
from experiments.spec import LeverSetting
from experiments.stack import store as stack_store
from experiments.stack.prepare import digest_of_levers
from experiments.stack.records import StackRecord
from experiments.stack.requests import StackRequest
from levers.errors import StoreError


@dataclass(frozen=True, slots=True)
class Bound:
    """The binding run of what ships now: measured, still to be resumed, or why there is none."""

    record: StackRecord | None = None
    unfinished: str = ""
    missing: str = ""


def on_set(place: Place, registry: Registry, current: Current) -> tuple[LeverSetting, ...]:
    """The levers that are default-ON in this scope, in the order of the catalog."""
    found = registry.default_on_set(
        place.workload.name, place.parameters, place.device_kind, current
    )
    order = {entry.name: number for number, entry in enumerate(place.known)}
    known = (one for one in found.settings if one.lever in order)
    return tuple(sorted(known, key=lambda one: order[one.lever]))


def bound(place: Place, home: Home, on: Sequence[LeverSetting]) -> Bound:
    """Find the binding run of this set in this scope with the present stack, the newest first."""
    digest = _digest(place, on)
    for record in _stacks(home):
        if not _fits(record, place, on, digest):
            continue
        if record.status == "interrupted":
            return Bound(unfinished=record.stack_id, missing="the binding run was interrupted")
        if record.status != "measured":
            said = "; ".join(text for _, text in record.faults)
            return Bound(missing=f"binding run {record.stack_id} shows no speed: {said}")
        if changed := _oracle_changed(record, place):
            return Bound(missing=f"the oracle changed: {changed}")
        return Bound(record)
    shipped = " + ".join(map(str, on)) or "no lever is on: the reference alone"
    return Bound(missing=f"no binding run of what ships now ({shipped})")


def request_of(place: Place, on: Sequence[LeverSetting], budget_s: float | None) -> StackRequest:
    """The stack to measure: the whole, each lever left out once, and the oracle."""
    campaign = place.campaign
    return StackRequest(
        workload=campaign.workload,
        levers=tuple(map(str, on)),
        device=place.device.facts.device if place.device else campaign.device,
        settings=campaign.settings,
        blocks=campaign.blocks,
        budget_s=budget_s,
        seed=campaign.seed,
        pairs=False,
        profile=True,
        oracle=campaign.oracle,
        tokens_on=tokens.models_for(place, on).texts,
        stepwise=False,
        bare=not on,
    )


def rows_of(on: Sequence[LeverSetting]) -> int:
    """Processes of one block: nothing, the whole, each left out, the oracle."""
    return 2 + bool(on) + (len(on) if len(on) > 1 else 0)


def _stacks(home: Home) -> Iterator[StackRecord]:
    """The stored stacks, newest first; one that cannot be read is left to ``stack --show``."""
    for stack_id in reversed(stack_store.ids(home)):
        try:
            yield stack_store.reread(home, stack_id)
        except StoreError:
            continue


def _fits(record: StackRecord, place: Place, on: Sequence[LeverSetting], digest: str) -> bool:
    spec, here = record.spec, record.environment
    return (
        spec.workload == place.workload.name
        and dict(spec.parameters) == dict(place.parameters)
        and here.device_kind == place.device_kind
        and set(spec.levers) == set(on)
        and spec.oracle is not None
        and spec.oracle.oracle == place.campaign.oracle
        and (len(on) < 1 or len(spec.left_out) == len(on))
        and (not place.versions or dict(here.versions) == dict(place.versions))
        and digest in ("", spec.levers_digest)
        and not tokens.lacking(place, spec, on)
    )


def _oracle_changed(record: StackRecord, place: Place) -> str:
    """The oracle's package then and now, where it differs; a stale oracle is never reused.

    Its version is no part of the stack, since no verdict without this oracle depends on it.
    """
    if not place.versions:
        return ""
    samples = (sample for one in record.evidence if one.row.oracle for sample in one.samples)
    then = {str(sample.telemetry.get(ORACLE_PACKAGE_FACT) or "") for sample in samples} - {""}
    names = {text.partition(" ")[0] for text in then}
    now = {f"{name} {environment.package_version(name) or 'absent'}" for name in names}
    return f"{', '.join(sorted(then))} -> {', '.join(sorted(now))}" if then != now else ""


def _digest(place: Place, on: Sequence[LeverSetting]) -> str:
    """The digest of the levers' sources as they are; empty where one cannot be loaded here."""
    by_name = {entry.name: entry.lever for entry in place.known}
    found = [by_name.get(one.lever) for one in on]
    loaded = [lever for lever in found if lever is not None]
    return digest_of_levers(loaded) if len(loaded) == len(found) else ""
