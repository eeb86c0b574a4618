"""What ran at the levers' sites of a measured process: the paths, per axis, as the sites saw them.

Untimed: each axis's work runs once while the sites watch. A lever that is off is read too, through
its own ``witness``, which only reads observations: that is what the lever is held against.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.workloads.base import Session
from levers import catalog

ARGUMENT = "witness"
"""The argument of a timed task that names the levers whose sites are read after the timed part."""


def subject_plans(session: Session, lever: str | None) -> tuple[dict[str, str], dict[str, int]]:
    """Per axis the plan at one lever's sites, and per site how many launches were seen."""
    _exercise(session)
    launches = {
        name: sum(sum(counts.values()) for counts in site.observations.values())
        for name, site in session.sites.items()
    }
    return ({} if lever is None else _read(session, lever)), launches


def stack_plans(session: Session, levers: Sequence[str]) -> dict[str, str]:
    """Per ``lever: axis`` which plan ran at the sites of several levers; nothing runs for none."""
    if not levers:
        return {}
    _exercise(session)
    return {
        f"{lever}: {axis}": plan for lever in levers for axis, plan in _read(session, lever).items()
    }


def _exercise(session: Session) -> None:
    for site in session.sites.values():
        site.forget()
    session.exercise()


def _read(session: Session, name: str) -> dict[str, str]:
    """The plans at one lever's sites; an axis that two sites serve names both."""
    lever = catalog.get(name)
    plans: dict[str, str] = {}
    for site in lever.touches:
        if site in session.sites:
            for axis, plan in lever.witness(session.sites[site]).items():
                plans[axis] = f"{plans[axis]}; {plan}" if axis in plans else plan
    return plans
