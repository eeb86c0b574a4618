"""What runs now, to hold stored verdicts against: versions, lever sources and the levers on."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from experiments import environment
from experiments.defaults import OF_SOME_RUNS, Current
from experiments.registry.store import Registry
from levers import catalog
from levers.errors import BrokenLever
from levers.source import source_digest


def current(registry: Registry, known: Iterable[catalog.Entry] | None = None) -> Current:
    """This machine's stack and the levers that are on for each work: what a reader compares with.

    A verdict that names a GPU's driver is compared with this machine's, if there is one.
    """
    return _with_on_sets(registry, stack(registry, environment.driver_now(), known))


def beside(registry: Registry, run_id: str) -> Current:
    """As much of :func:`current` as the standing of one run depends on, which is read faster.

    Of the sets of levers that are on, only those of the run's own workload and device are right.

    Raises:
        UnknownName: no such run is stored.
    """
    wanted = registry.levers(beside=run_id)
    return _with_on_sets(registry, stack(registry, environment.driver_now(), wanted=wanted))


def _with_on_sets(registry: Registry, here: Current) -> Current:
    return here.model_copy(update={"on_sets": registry.on_sets(here)})


def stack(
    registry: Registry,
    driver: str,
    known: Iterable[catalog.Entry] | None = None,
    wanted: Collection[str] | None = None,
) -> Current:
    """Versions and lever sources alone: what a verdict must match to be applied.

    A lever that cannot be loaded here is not compared: the list of levers shows it as broken, and
    elsewhere its verdicts still stand.

    Args:
        registry: whose levers are looked up.
        driver: of the device that is asked about; empty for a CPU.
        known: the catalog, if it was read already: to look for installed levers takes its time.
        wanted: names of the levers that matter; all with a verdict if not given.
    """
    digests: dict[str, str] = {}
    wanted = registry.levers() if wanted is None else wanted
    for found in catalog.named(wanted) if known is None else known:
        with contextlib.suppress(BrokenLever):
            if found.lever is not None and found.name in wanted:
                digests[found.name] = source_digest(found.lever)
    return Current(
        versions={
            **environment.stack_versions(driver),
            **environment.versions(OF_SOME_RUNS),
        },
        lever_digests=digests,
        device_kinds=environment.device_kinds(),
    )
