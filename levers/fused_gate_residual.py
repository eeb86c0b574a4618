"""The gated residual of the flow blocks, ``x + h * gate``, in one kernel each way.

What changes: twice a block, the original gathers the gate's row for every token, multiplies and
rounds, adds and rounds. Here one kernel computes in fp32 and rounds once.

Mechanism: the forward moves 6 bytes an element (two rows read, one written) where the original
moves 14, because the gathered rows and the product are never written. In the backward ``x`` takes
the gradient itself, one pass writes ``h``'s, and the gate's is summed over a sample's rows in fp32
registers in that same pass: the walk and the roundings of the indexed backward (see
``segment_sum_broadcast``, which this supersedes at its site) are gone. Only ``h`` and the gate are
kept, where the original keeps the gathered gate as well.

Where it does not help: blocks that ``torch.compile`` fuses as a whole, steps that large matrix
products fill, a CPU, in speed, beyond the gather it saves, and ungated residuals.

Sources: Peebles and Xie, Scalable Diffusion Models with Transformers (2023), for the gate; Higham,
Accuracy and Stability of Numerical Algorithms, ch. 4 (blocked summation); Tillet et al., Triton
(2019).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, Guard, ParityClass

ON = "on"
SITE = "flow.gate_residual"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio. One shared core moves a step by up to 3 % between processes; a margin below the noise
would leave every verdict open."""


class FusedGateResidual:
    """Swaps the gated residual for the fused one."""

    name = "fused_gate_residual"
    summary = "gated residual in one kernel, fp32 sum in its backward"
    settings = Settings((OFF, ON))
    env = "LEVER_FUSED_GATE_RESIDUAL"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ("segment_sum_broadcast",)
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow", "ss_flow")
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; lossless: fewer roundings."""
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
        reasons = []
        if setting != OFF and SITE not in facts.sites:
            reasons.append(f"{facts.workload} has no site {SITE}")
        if setting != OFF and facts.device_type == "cuda" and not _has_triton():
            reasons.append("the CUDA kernel needs triton, which is not installed")
        return tuple(reasons)

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Put our operation in the site; returns the callable that was there."""
        if setting == OFF:
            return site.launch
        from levers.kernels.gate_residual import gate_residual

        found, site.launch = site.launch, gate_residual
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

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Forward and backward over lengths, means, widths, dtypes and adversarial values."""
        del setting
        from levers.kernels.gate_residual_cases import op_cases

        return op_cases(device)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


LEVER = FusedGateResidual()
