"""What levers share that replace operations of a decode step by other ones.

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

LATENCY_MARGIN = 0.03
"""Log ratio. Tail latencies scatter by a few percent between fresh processes."""

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio. The noise of a shared CPU core is a few percent; a margin below it decides nothing."""


class DecodeLever(ABC):
    """Swaps the callables of its sites; a subclass names the sites and gives the operations.

    Attributes:
        touches: the sites that it changes.
        claims: the parity class that its policy claims.
        demands: the weakest class that may ship; None where that is the one claimed.
    """

    settings = Settings((OFF, ON))
    touches: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("decode",)
    at_import = False
    claims = ParityClass.LOSSLESS
    demands: ParityClass | None = None

    @abstractmethod
    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """What goes into the site in place of ``site.launch``; imports torch."""

    def policy(self, facts: Facts) -> GatingPolicy:
        """A throughput must win; tail latencies and, on CUDA, peak memory may not get worse."""
        on_cpu = facts.device_type == "cpu"
        latencies = (
            Guard("decode/ttft_ms/p95", LATENCY_MARGIN),
            Guard("decode/itl_ms/p95", LATENCY_MARGIN),
        )
        memory = () if on_cpu else (Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN),)
        return GatingPolicy(
            primaries=("decode/tok_s/c*",),
            guards=(*latencies, *memory),
            claims=self.claims,
            demands=self.demands,
            primary_margin=CPU_MARGIN if on_cpu else 0.01,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs its sites, and Triton where the device is CUDA."""
        if setting == OFF:
            return ()
        reasons = [
            f"{facts.workload} has no site {site}"
            for site in self.touches
            if site not in facts.sites
        ]
        if facts.device_type == "cuda" and not _has_triton():
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

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, the plans that ran."""
        return {axis: ", ".join(sorted(plans)) for axis, plans in site.observations.items()}


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
