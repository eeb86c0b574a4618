"""What runs now, to hold stored verdicts against: versions, lever sources and the levers on."""

from __future__ import annotations

from experiments import environment
from experiments.defaults import Current
from experiments.registry import Registry
from levers import catalog
from levers.errors import BrokenLever, UnknownName
from levers.source import source_digest


def current(registry: Registry) -> Current:
    """This machine's stack and the levers that are on for each work: what a reader compares with.

    A verdict that names a GPU's driver is compared with this machine's, if there is one.
    """
    here = stack(registry, environment.driver_now())
    return here.model_copy(update={"on_sets": registry.on_sets(here)})


def stack(registry: Registry, driver: str) -> Current:
    """Versions and lever sources alone: what a verdict must match to be applied.

    Args:
        registry: whose levers are looked up; one that cannot be loaded here is not compared.
        driver: of the device that is asked about; empty for a CPU.
    """
    digests = {}
    for name in sorted({state.scope.lever for state in registry.default_states()}):
        try:
            digests[name] = source_digest(catalog.get(name))
        except (UnknownName, BrokenLever):
            continue  # the list of levers shows it as broken; elsewhere its verdicts still stand
    return Current(
        versions=dict(environment.stack_versions(driver)),
        lever_digests=digests,
        device_kinds=environment.device_kinds(),
    )
