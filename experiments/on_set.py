"""The levers that are default-ON together in a scope, and why others are left out (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from experiments.defaults import DefaultState
from experiments.spec import LeverSetting
from experiments.values import Value


class OnSet(Value):
    """The levers that are default-ON in a scope, and those left out with the reason."""

    settings: tuple[LeverSetting, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def on_set(states: Iterable[DefaultState]) -> OnSet:
    """The levers that are on together: one setting a lever, the one decided last.

    Only settings measured against ``off`` count: a verdict of one setting over another says
    nothing about the lever's worth. Nor does a verdict with a lever beside that is not on here say
    anything about a state without it, unless a person did. What is left out is named.
    """
    eligible = [one for one in states if one.state == "on" and one.scope.ref == "off"]
    eligible.sort(key=lambda one: (one.decided_at, one.run_id))
    left_out = [(_label(one), f"stale: {_why_stale(one)}") for one in eligible if not one.applies]
    able = [one for one in eligible if one.applies]
    while alone := [
        (one, absent) for one in _latest_of_each(able) if (absent := _absent(one, able))
    ]:
        left_out += [
            (_label(one), f"measured beside {', '.join(absent)}, not on here")
            for one, absent in alone
        ]
        able = [one for one in able if all(one is not other for other, _ in alone)]
    kept = _latest_of_each(able)
    latest = {one.scope.lever: one for one in kept}
    left_out += [
        (_label(one), f"{_label(later)} was decided later")
        for one in able
        if (later := latest[one.scope.lever]) is not one
    ]
    settings = (LeverSetting(lever=one.scope.lever, setting=one.scope.setting) for one in kept)
    return OnSet(settings=tuple(settings), left_out=tuple(left_out))


def _latest_of_each(ordered: Iterable[DefaultState]) -> list[DefaultState]:
    """Of each lever the state that was decided last, by the levers' names."""
    latest = {one.scope.lever: one for one in ordered}
    return [latest[name] for name in sorted(latest)]


def _absent(state: DefaultState, able: Iterable[DefaultState]) -> tuple[str, ...]:
    """The levers that were on beside when this was measured and are not now, in any setting."""
    if state.override is not None:
        return ()
    on = {one.scope.lever for one in able}
    return tuple(one for one in state.beside if one.partition("=")[0] not in on)


def _label(state: DefaultState) -> str:
    return f"{state.scope.lever}={state.scope.setting}"


def _why_stale(state: DefaultState) -> str:
    both = zip(state.flags, state.notes, strict=True)
    return next(note for flag, note in both if flag == "stale")
