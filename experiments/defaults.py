"""The default state of a lever in a scope, drawn from its verdicts (pure).

A verdict holds for its scope (workload with parameters, device kind, lever setting) and is bound to
a stack and to the set of other levers that were on. The latest standing verdict decides; a
default-ON is *unconfirmed* until a second run on another day, boot or device of the kind agrees. It
is *stale* once the stack differs and *unbound* once the set of ON levers differs; both are shown,
and a stale one is never applied by :func:`experiments.on_set.on_set`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from experiments.evidence import Evidence, Scope
from experiments.records import Outcome
from experiments.requests import Standing
from experiments.spec import DEEPSPEED
from experiments.values import FrozenMap, Value

State = Literal["on", "off", "undecided"]
OverrideState = Literal["on", "off", "as-decided"]
Flag = Literal["unconfirmed", "stale", "unbound", "invalidated", "overridden"]


class Override(Value):
    """A person's word over the verdict of one scope; ``as-decided`` withdraws an earlier one."""

    state: OverrideState
    name: str
    reason: str
    at: str


OF_SOME_RUNS = ("driver", DEEPSPEED)
"""Versions that some runs have, those on a GPU or under DeepSpeed; no other verdict needs them."""


class Current(Value):
    """What runs now: versions and lever source digests to compare with; None is not compared.

    ``device_kinds`` are the devices of this machine; a verdict of another device is not stale here.
    ``on_sets`` holds the levers that are on for each work (:attr:`Scope.work`); ``on_set`` stands
    for all works at once.
    """

    versions: FrozenMap[str] | None = None
    lever_digests: FrozenMap[str] = Field(default_factory=dict)
    on_set: tuple[str, ...] | None = None
    on_sets: FrozenMap[tuple[str, ...]] = Field(default_factory=dict)
    device_kinds: tuple[str, ...] | None = None

    def has(self, device_kind: str) -> bool:
        """Whether such a device is here: only then is its stack known and can be compared."""
        return self.device_kinds is None or device_kind in self.device_kinds

    def on_with(self, scope: Scope) -> tuple[str, ...] | None:
        """The levers that are on where this scope is; None is not compared."""
        return self.on_sets.get(scope.work) if self.on_set is None else self.on_set


class DefaultState(Value):
    """What ships in one scope, since which run, and what a reader must know beside it.

    ``ships`` is the setting in force. ``flags`` are shown wherever the state is; ``notes`` explain
    them, one line each. ``beside`` are the other levers that were on in the run that decided, and
    ``otherwise`` is what the latest verdicts beside other ones say, where they say something else.
    """

    scope: Scope
    state: State
    ships: str
    run_id: str = ""
    outcome: Outcome | None = None
    reason: str = ""
    decided_at: str = ""
    confirmed_by: str = ""
    flags: tuple[Flag, ...] = ()
    notes: tuple[str, ...] = ()
    override: Override | None = None
    beside: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The state with its flags: ``on (unconfirmed, stale)``."""
        return self._flagged(self.state)

    @property
    def label_beside(self) -> str:
        """The same with the levers beside which that was measured: ``on beside a=on (stale)``.

        What a person said holds whatever stands beside it.
        """
        if self.override is not None or not self.beside:
            return self.label
        return self._flagged(f"{self.state} beside {', '.join(self.beside)}")

    def _flagged(self, said: str) -> str:
        return f"{said} ({', '.join(self.flags)})" if self.flags else said

    @property
    def remarks(self) -> tuple[str, ...]:
        """Flags that need their reason beside them, and verdicts beside other levers."""
        both = zip(self.flags, self.notes, strict=True)
        flagged = (f"{flag}: {note}" for flag, note in both if flag != "unconfirmed")
        return (*flagged, *(f"otherwise: {one}" for one in self.otherwise))

    @property
    def applies(self) -> bool:
        """Whether it may be applied unasked: on, and not stale unless a person said so."""
        return self.state == "on" and (self.override is not None or "stale" not in self.flags)


def derive_state(
    scope: Scope,
    evidence: Iterable[Evidence],
    override: Override | None = None,
    current: Current | None = None,
) -> DefaultState:
    """The default state of a scope from its decided runs.

    The latest run that was not invalidated decides. Without any, nothing is on: there is no default
    branch to ON.
    """
    ordered = sorted(evidence, key=lambda one: (one.created_at, one.run_id))
    standing = [one for one in ordered if not one.invalidated]
    notes: list[tuple[Flag, str]] = []
    if ordered and ordered[-1].invalidated:
        notes.append(("invalidated", f"run {ordered[-1].run_id}: {ordered[-1].invalidated}"))
    latest = standing[-1] if standing else None
    state: State = "undecided"
    confirmed = ""
    if latest is not None:
        state = "on" if latest.outcome is Outcome.DEFAULT_ON else "off"
        confirmed = _confirmed_by(latest, standing) if state == "on" else ""
        if state == "on" and not confirmed:
            notes.append(("unconfirmed", "no second run on another day, boot or device agrees yet"))
        notes.extend(_drifted(latest, current or Current()))
    said = override if override is not None and override.state != "as-decided" else None
    if said is not None and said.state != "as-decided":
        text = f"{said.state} by {said.name}: {said.reason} (the verdicts say {state})"
        notes.append(("overridden", text))
        state = said.state
    return DefaultState(
        scope=scope,
        state=state,
        ships=scope.setting if state == "on" else scope.ref,
        run_id=latest.run_id if latest else "",
        outcome=latest.outcome if latest else None,
        reason=latest.reason if latest else "",
        decided_at=latest.created_at if latest else "",
        confirmed_by=confirmed,
        flags=tuple(flag for flag, _ in notes),
        notes=tuple(text for _, text in notes),
        override=said,
        beside=latest.on_set if latest else (),
        otherwise=_otherwise(latest, standing) if latest else (),
    )


def _otherwise(latest: Evidence, standing: Sequence[Evidence]) -> tuple[str, ...]:
    """The latest verdict beside each other set of levers, where it puts the lever elsewhere.

    A verdict on another stack, or of another source, is another matter than what stood beside.
    """
    newest = {
        one.on_set: one
        for one in standing
        if one.versions == latest.versions and one.lever_digest == latest.lever_digest
    }
    on = latest.outcome is Outcome.DEFAULT_ON
    return tuple(
        f"beside {', '.join(one.on_set) or 'no other lever'} run {one.run_id} is {one.outcome}"
        for one in newest.values()
        if one.on_set != latest.on_set and (one.outcome is Outcome.DEFAULT_ON) != on
    )


def _confirmed_by(latest: Evidence, standing: Sequence[Evidence]) -> str:
    """The newest run that agrees with the latest, with no contrary verdict between them."""
    for other in reversed(standing[:-1]):
        if other.outcome is not latest.outcome:
            return ""
        if other.confirms(latest):
            return other.run_id
    return ""


def standing_of(
    run: Evidence,
    scope_evidence: Iterable[Evidence],
    override: Override | None = None,
    current: Current | None = None,
) -> Standing:
    """What is shown beside the verdict of one run, whether or not it still decides its scope."""
    agree = [
        other.run_id
        for other in scope_evidence
        if other.run_id != run.run_id and not other.invalidated and other.confirms(run)
    ]
    drifted = dict(_drifted(run, current or Current()))
    said = override if override is not None and override.state != "as-decided" else None
    return Standing(
        confirmed=max(agree) if agree and run.outcome is Outcome.DEFAULT_ON else "",
        stale=drifted.get("stale", ""),
        unbound=drifted.get("unbound", ""),
        invalidated=run.invalidated,
        override=f"{said.state} by {said.name}: {said.reason}" if said else "",
    )


def _drifted(run: Evidence, current: Current) -> list[tuple[Flag, str]]:
    """How the stack and the ON set of now differ from those that the run was made with."""
    found: list[tuple[Flag, str]] = []
    changes = []
    if current.versions is not None and current.has(run.scope.device_kind):
        changes = _changes(run.versions, current.versions)
    digest = current.lever_digests.get(run.scope.lever)
    if digest is not None and digest != run.lever_digest:
        changes.append("the lever's source changed")
    if changes:
        found.append(("stale", f"measured on another stack: {', '.join(changes)}"))
    on_now = current.on_with(run.scope)
    if on_now is not None:
        mine = f"{run.scope.lever}="
        others = {one for one in on_now if not one.startswith(mine)}
        if others != set(run.on_set):
            was, now = ", ".join(run.on_set) or "none", ", ".join(sorted(others)) or "none"
            found.append(("unbound", f"other levers on then: {was}; now: {now}"))
    return found


def _changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    names = sorted(name for name in {*then, *now} if name not in OF_SOME_RUNS or name in then)
    return [
        f"{name} {then.get(name, 'absent')} -> {now.get(name, 'absent')}"
        for name in names
        if then.get(name) != now.get(name)
    ]
