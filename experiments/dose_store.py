"""The doses of a lever from everything that is stored: decided runs and measured stacks."""

from __future__ import annotations

from collections.abc import Iterator

from experiments import now, pipeline
from experiments.dose import Dose, Reading, of_run, of_stack, readings
from experiments.home import Home
from experiments.registry.store import Registry
from experiments.stack import store as stack_store
from levers import catalog
from levers.errors import UnknownName, UsageError


def stored(lever: str, over: str) -> list[tuple[str, list[Reading]]]:
    """What the lever's stored gains say over a parameter of the workload.

    Raises:
        UnknownName: there is no such lever, or no such parameter in what is stored.
        UsageError: no two stored gains differ in that parameter alone.
    """
    where = pipeline.home(reading=True)
    with Registry.open(where.registry) as registry:
        doses = [*_of_runs(registry, lever), *_of_stacks(where, lever)]
    if not doses:
        catalog.get(lever)
    known = {name for one in doses for name in one.parameters}
    if doses and over not in known:
        raise UnknownName("parameter of the stored gains", over, known)
    found = readings(sorted(doses, key=lambda one: one.source), over)
    if not found:
        raise UsageError(
            f"no two stored gains of {lever} differ in {over} alone ({len(doses)} are stored)",
            cure=f"measure it twice, such as levergate ab {lever} --set {over}=VALUE",
        )
    return found


def _of_runs(registry: Registry, lever: str) -> Iterator[Dose]:
    for row in registry.history(lever, current=now.current(registry)):
        if row.status == "decided" and not row.standing.invalidated:
            yield from of_run(registry.load(row.run_id))


def _of_stacks(where: Home, lever: str) -> Iterator[Dose]:
    for stack_id in stack_store.ids(where):
        record = stack_store.load(stack_store.find(where, stack_id))
        if any(one.lever == lever for one in record.spec.levers):
            yield from (one for one in of_stack(record) if one.key[0].partition("=")[0] == lever)
