"""A screen inside the measured process: one built session, the settings one after the other.

No verdict can come of it. Iterations inside one process share compilations, the allocator and the
clock, and every setting but the first finds warm what another has warmed. It orders candidates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from experiments.compilations import CompilationCounter
from experiments.failure_kinds import kind_of
from experiments.tasks import Task, TaskResult, Visit
from experiments.workloads.base import Session
from levers import catalog
from levers.base import Lever, engaged
from levers.handle import held

FEWEST_ROUNDS = 2
"""One order and its reverse: a ramp or a position then falls on all settings alike."""


class Stages(Protocol):
    """What is told at each step; see :class:`experiments.worker.Stage`."""

    def enter(self, name: str) -> None:
        """Begin a stage."""


@runtime_checkable
class Renewable(Protocol):
    """A session that keeps what holds the setting of its capture, such as CUDA graphs."""

    def renew(self) -> None:
        """Drop what was captured under another setting."""


def orders(settings: Sequence[str], rounds: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Round by round the order of the settings: forwards, backwards, forwards ..."""
    for number in range(rounds):
        yield number, tuple(settings) if number % 2 == 0 else tuple(reversed(settings))


def screen(task: Task, session: Session, stage: Stages, counter: CompilationCounter) -> TaskResult:
    """Visit each setting in each round; a setting that raises is left out from then on.

    Args:
        task: ``arguments`` are ``lever``, ``settings`` (the reference first), ``rounds`` at most,
            and ``seconds``, after which no further round begins (two are always made).
        session: built once, for all settings.
        stage: told at each visit, so that the setting that ends the process is known.
        counter: sees compilations inside a timed part.
    """
    arguments = task.arguments
    lever = catalog.get(arguments["lever"])
    visits: list[Visit] = []
    failed: set[str] = set()
    start = time.monotonic()
    for number, order in orders(arguments["settings"], arguments["rounds"]):
        late = time.monotonic() - start > arguments["seconds"]
        if late and number >= FEWEST_ROUNDS and number % 2 == 0:
            break
        for setting in order:
            if setting in failed:
                continue
            stage.enter(f"screen {lever.name}={setting}, round {number}")
            visit = _guarded(lever, setting, number, session, counter)
            visits.append(visit)
            if visit.failure is not None:
                failed.add(setting)
    return TaskResult(visits=tuple(visits))


def _guarded(
    lever: Lever,
    setting: str,
    number: int,
    session: Session,
    counter: CompilationCounter,
) -> Visit:
    """One visit; an exception of the setting is its failure, and the others go on."""
    try:
        return _visit(lever, setting, number, session, counter)
    except Exception as error:  # noqa: BLE001 - the process boundary, setting by setting
        message = f"{type(error).__name__}: {error}"
        return Visit(setting=setting, round=number, failure=kind_of(error), message=message)


def _visit(
    lever: Lever, setting: str, number: int, session: Session, counter: CompilationCounter
) -> Visit:
    with engaged(lever, session.sites, setting):
        if isinstance(session, Renewable):
            session.renew()
        start = time.monotonic()
        session.warm_up()
        warm = time.monotonic()
        counter.watch()
        before = counter.count()
        measurement = session.measure()
        measured_s = time.monotonic() - warm
        compiled = counter.count() - before
        bad = [n for n, v in measurement.values.items() if not (math.isfinite(v) and v > 0)]
        if bad:
            raise FloatingPointError(f"figures that are not finite and positive: {bad}")
        return Visit(
            setting=setting,
            round=number,
            values=measurement.values,
            plans=_plans(lever, session) if number == 0 else {},
            warmup_s=warm - start,
            measured_s=measured_s,
            compilations=compiled,
        )


def _plans(lever: Lever, session: Session) -> dict[str, str]:
    """The plans that run at this setting, in an untimed pass."""
    for site in session.sites.values():
        site.forget()
    session.exercise()
    plans: dict[str, str] = {}
    for name in lever.touches:
        plans.update(lever.witness(held(session.sites[name])))
    return plans
