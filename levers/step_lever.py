"""What levers share that replace one operation of a training step by a fused one.

Its source belongs to the digest of each lever built on it (:mod:`levers.source`).
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from levers.base import OFF, Facts, Settings, Site
from levers.policy import GatingPolicy, Guard, ParityClass

ON = "on"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio. One shared core moves a step by up to 3 % between processes; a margin below the noise
would leave every verdict open."""


class SiteLever(ABC):
    """Swaps the callable of one site; a subclass names the site and makes what goes into it.

    Attributes:
        touches: the one site.
    """

    settings = Settings((OFF, ON))
    touches: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("slat_flow", "ss_flow")
    at_import = False

    @abstractmethod
    def around(self, found: Callable[..., Any], setting: str) -> Callable[..., Any]:
        """What goes into the site in place of ``found``, which it may call; imports torch."""

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; lossless."""
        on_cpu = facts.device_type == "cpu"
        memory = Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN)
        return GatingPolicy(
            primaries=("train/tok_s",),
            guards=() if on_cpu else (memory,),
            claims=ParityClass.LOSSLESS,
            primary_margin=CPU_MARGIN if on_cpu else 0.01,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs the site, and Triton where the device is CUDA."""
        (site,) = self.touches
        reasons = []
        if setting != OFF and site not in facts.sites:
            reasons.append(f"{facts.workload} has no site {site}")
        if setting != OFF and facts.device_type == "cuda" and not _has_triton():
            reasons.append("the CUDA kernel needs triton, which is not installed")
        return tuple(reasons)

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Put our operation in the site; returns the callable that was there."""
        found = site.launch
        if setting != OFF:
            site.launch = self.around(found, setting)
        return found

    def disable(self, site: Site, undo: object) -> None:
        """Put back the callable that ``enable`` found."""
        site.launch = undo  # type: ignore[assignment]

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, which autograd nodes ran the backward, and how often."""
        return {
            axis: ", ".join(f"{plan} x {count}" for plan, count in sorted(plans.items()))
            for axis, plans in site.observations.items()
        }


class StepLever(SiteLever):
    """A lever with one setting whose operation needs nothing of the one that it replaces."""

    @abstractmethod
    def operation(self) -> Callable[..., Any]:
        """What goes into the site; imports torch."""

    def around(self, found: Callable[..., Any], setting: str) -> Callable[..., Any]:
        """The operation."""
        del found, setting
        return self.operation()


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
