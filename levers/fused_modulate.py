"""LayerNorm and modulation of the flow blocks in one kernel each way.

What changes: twice a block, the original normalises the stream in fp32, gathers ``1 + scale`` and
``shift`` for every token, multiplies, adds, and lets the next Linear round: five passes over
``[N, C]``, most of them fp32. Here one kernel reads the bf16 stream and writes the bf16 operand of
that Linear. The roundings are the original's.

Mechanism: the forward moves 4 bytes an element where the original moves about 44, and no gathered
``[N, C]`` row exists in either direction. The backward recomputes the normalised row from the
stream and two fp32 values, and sums the gradients of scale and shift over a sample's rows in fp32
registers while it writes the stream's: the walk and the roundings of the indexed backward (see
``segment_sum_broadcast``, which this supersedes at its site) are gone without a second pass. Kept
for the backward: the bf16 stream, which is alive anyway, in place of fp32 copies of it. The stream
itself goes on through the operation, so that the gradient that comes back along it is read and
added in fp32 in the same pass, 2 bytes an element, where autograd's sum of both moves 6.

Where it does not help: blocks that ``torch.compile`` fuses as a whole (Inductor writes much the
same kernel), steps that large matrix products fill (short rows, few tokens), a CPU, in speed,
beyond the gathers it saves, and layers whose modulation is a vector for all samples.

Sources: Ba, Kiros and Hinton, Layer Normalization (2016); Tillet et al., Triton (2019) and its
layer-norm tutorial (partial sums by program, then a second kernel); Peebles and Xie, Scalable
Diffusion Models with Transformers (2023), for the modulated norm.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, Guard, ParityClass

ON = "on"
SITE = "flow.modulate"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio. One shared core moves a step by up to 3 % between processes; a margin below the noise
would leave every verdict open."""


class FusedModulate:
    """Swaps the modulated norm for the fused one."""

    name = "fused_modulate"
    summary = "LayerNorm and modulation in one kernel, fp32 sums in its backward"
    settings = Settings((OFF, ON))
    env = "LEVER_FUSED_MODULATE"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ("segment_sum_broadcast",)
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow", "ss_flow")
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; lossless: same roundings, better sums."""
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
        from levers.kernels.modulate import modulate

        found, site.launch = site.launch, modulate
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
        from levers.kernels.modulate_cases import op_cases

        return op_cases(device)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


LEVER = FusedModulate()
