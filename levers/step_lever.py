"""What levers share that replace one operation of a training step by another one.

Its source belongs to the digest of each lever built on it (:mod:`levers.source`).
"""

from __future__ import annotations

from collections.abc import Mapping

from levers.base import Facts, Site
from levers.policy import GatingPolicy, Guard, ParityClass, Tolerance
from levers.site_lever import CPU_MARGIN, PEAK_MEMORY_MARGIN, SiteLever


class StepLever(SiteLever):
    """A lever of the flow workloads.

    Attributes:
        claims: the parity class that its policy claims.
        tolerance: of a lever that claims ``tolerated``.
    """

    workloads: tuple[str, ...] = ("slat_flow", "ss_flow")
    claims = ParityClass.LOSSLESS
    tolerance: Tolerance | None = None

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; of the class that is claimed."""
        on_cpu = facts.device_type == "cpu"
        memory = Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN)
        return GatingPolicy(
            primaries=("train/tok_s",),
            guards=() if on_cpu else (memory,),
            claims=self.claims,
            tolerance=self.tolerance,
            primary_margin=CPU_MARGIN if on_cpu else 0.01,
        )

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, which autograd nodes ran the backward, and how often."""
        return {
            axis: ", ".join(f"{plan} x {count}" for plan, count in sorted(plans.items()))
            for axis, plans in site.observations.items()
        }
