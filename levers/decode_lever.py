"""What levers share that replace operations of a decode step by other ones.

Its source belongs to the digest of each lever built on it (:mod:`levers.source`).
"""

from __future__ import annotations

from collections.abc import Mapping

from levers.base import Facts, Site
from levers.policy import GatingPolicy, Guard, ParityClass
from levers.site_lever import CPU_MARGIN, PEAK_MEMORY_MARGIN, SiteLever

LATENCY_MARGIN = 0.03
"""Log ratio. Tail latencies scatter by a few percent between fresh processes."""


class DecodeLever(SiteLever):
    """A lever of the decode workload.

    Attributes:
        claims: the parity class that its policy claims.
        demands: the weakest class that may ship; None where that is the one claimed.
    """

    workloads: tuple[str, ...] = ("decode",)
    claims = ParityClass.LOSSLESS
    demands: ParityClass | None = None

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

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, the plans that ran."""
        return {axis: ", ".join(sorted(plans)) for axis, plans in site.observations.items()}
