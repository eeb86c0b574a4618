"""What levers share that put another callable in their sites: needs, enabling, restoring.

Its source belongs to the digest of each lever built on it (:mod:`levers.source`).
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from levers.base import OFF, Facts, Settings, Site

ON = "on"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio. The noise of one shared CPU core is up to 3 % between processes; a margin below it
would leave every verdict open."""


class SiteLever(ABC):
    """Swaps the callables of its sites; a subclass names the sites and gives the operations.

    Attributes:
        touches: the sites that it changes.
    """

    settings = Settings((OFF, ON))
    touches: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    at_import = False

    @abstractmethod
    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """What goes into the site in place of ``site.launch``, which it may call; imports torch."""

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs its sites, and Triton where the device is CUDA."""
        if setting == OFF:
            return ()
        reasons = [
            f"{facts.workload} has no site {site}"
            for site in self.touches
            if site not in facts.sites
        ]
        if facts.device_type == "cuda" and importlib.util.find_spec("triton") is None:
            reasons.append("the CUDA kernels need triton, which is not installed")
        return tuple(reasons)

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Put our operation in the site; returns the callable that was there."""
        found = site.launch
        if setting != OFF:
            site.launch = self.operation(site, setting)
        return found

    def disable(self, site: Site, undo: object) -> None:
        """Put back the callable that ``enable`` found."""
        site.launch = undo  # type: ignore[assignment]
