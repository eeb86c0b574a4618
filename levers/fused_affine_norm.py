"""LayerNorm with weight and bias of the flow blocks, from bf16 to bf16, in one kernel each way.

What changes: before the cross-attention of each block the original copies the stream to fp32,
normalises it into another fp32 tensor, and lets the next Linear round that to bf16. Here one kernel
reads the bf16 stream and writes the bf16 operand of that Linear.

Mechanism: the forward moves 4 bytes an element where the original moves 20 (two casts and the
norm), because nothing is written in fp32. The backward reads the bf16 gradient and stream, writes
the bf16 gradient of the stream, and sums those of weight and bias in fp32 registers in the same
pass; the programs' partials are summed by a second kernel, in a fixed order. Kept for the backward:
the bf16 stream, which is alive anyway, in place of an fp32 copy. The stream itself goes on through
the operation, so that the gradient that comes back along it is read and added in fp32 in the same
pass, 2 bytes an element, where autograd's sum of both moves 6.

Where it does not help: blocks that ``torch.compile`` fuses as a whole, a CPU, whose LayerNorm is
one kernel already, and precisions in which the next Linear multiplies in fp32.

Sources: Ba, Kiros and Hinton, Layer Normalization (2016); PyTorch
``aten/src/ATen/native/cuda/layer_norm_kernel.cu`` (the original); Tillet et al., Triton (2019) and
its layer-norm tutorial.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, Guard, ParityClass

ON = "on"
SITE = "flow.affine_norm"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio. One shared core moves a step by up to 3 % between processes; a margin below the noise
would leave every verdict open."""


class FusedAffineNorm:
    """Swaps the affine norm for the fused one."""

    name = "fused_affine_norm"
    summary = "affine LayerNorm from bf16 to bf16 in one kernel each way"
    settings = Settings((OFF, ON))
    env = "LEVER_FUSED_AFFINE_NORM"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow", "ss_flow")
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; lossless: same roundings."""
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
        from levers.kernels.affine_norm import affine_norm

        found, site.launch = site.launch, affine_norm
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
        from levers.kernels.affine_norm_cases import op_cases

        return op_cases(device)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


LEVER = FusedAffineNorm()
