"""What ran at the levers' sites of a measured process: the paths, per axis, as the sites saw them.

Untimed: each axis's work runs once while the sites watch. A lever that is off is read too, through
its own ``witness``, which only reads observations: that is what the lever is held against.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.failure_kinds import levers_own
from experiments.values import Scalar
from experiments.witness_records import COUNTED, WORK
from experiments.workloads.base import Session
from levers import catalog
from levers.handle import held

ARGUMENT = "witness"
"""The argument of a timed task that names the levers whose sites are read after the timed part."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One witness pass.

    ``plans`` are the lever's words for what ran on each axis, ``launches`` counts what each site
    saw, and ``counted`` is what the lever's sites saw on each axis, in nobody's words (as facts).
    ``work`` is a digest of what was done on the way, whatever anybody says of it; empty if unseen.
    """

    plans: dict[str, str]
    launches: dict[str, int]
    counted: dict[str, str]
    work: str = ""

    @property
    def facts(self) -> dict[str, Scalar]:
        """What is kept beside the plans."""
        return {**self.counted, **({WORK: self.work} if self.work else {})}


def subject_pass(session: Session, lever: str | None) -> Pass:
    """Run each axis's work once and read what one lever's sites saw."""
    work = _work(session)
    launches = {
        name: sum(sum(counts.values()) for counts in site.observations.values())
        for name, site in session.sites.items()
    }
    if lever is None:
        return Pass({}, launches, {})
    counted = _counted(session, lever)
    return Pass(_read(session, lever), launches, counted, work)


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


def _work(session: Session) -> str:
    """Exercise a session and say what was done; where torch is not at work, nothing can be seen."""
    if "torch" not in sys.modules:
        _exercise(session)
        return ""
    from experiments.parity.op_work import watched

    return watched(lambda: _exercise(session)).digest


def _counted(session: Session, name: str) -> dict[str, str]:
    """Per site and axis what the workload counted there; a lever's words do not enter."""
    return {
        f"{COUNTED}{site} {axis}": ", ".join(f"{plan} x {n}" for plan, n in sorted(plans.items()))
        for site in catalog.get(name).touches
        if site in session.sites
        for axis, plans in session.sites[site].observations.items()
    }


def _read(session: Session, name: str) -> dict[str, str]:
    """The plans at one lever's sites; an axis that two sites serve names both."""
    lever = catalog.get(name)
    plans: dict[str, str] = {}
    for site in lever.touches:
        if site in session.sites:
            with levers_own(f"witness of {name}"):
                found = dict(lever.witness(held(session.sites[site])))
            for axis, plan in found.items():
                plans[axis] = f"{plans[axis]}; {plan}" if axis in plans else plan
    return plans
