"""RMS norm of the heads and 3-D RoPE of queries and keys in one kernel, forward and backward.

What changes: the published block normalises each head of queries and keys in fp32
(``F.normalize``, times gamma and sqrt(D), rounded to bf16) and then turns adjacent channels by
complex multiplication in fp32, rounded again. That is some twenty launches each way with fp32
intermediates of the size of the activations. Here one launch reads the bf16 rows where they lie in
the packed projection, keeps everything in registers with the same two roundings, turns by cosines
and sines (the phases read as real numbers), and writes contiguous bf16 rows. The backward is one
launch as well: it reads the rows again in place of saved fp32 copies, and leaves partial sums for
the gradients of the gammas, in fp32.

Mechanism: every one of those element-wise steps is bound by the memory's bandwidth, so the time
follows the bytes. Per element of queries and keys the original moves about 60 bytes forward and
100 backward, the kernels 4 and 6. The packed projection goes in whole, and the values come out as a
view, so that the backward writes one packed gradient: 4 bytes an element of values, where autograd
stacks the gradients of all three, 4 bytes an element of each. Saving the bf16 rows alone also frees
the fp32 copies that autograd kept. The gradient of the rotated values is not rounded between
rotation and norm, as the original does, so gradients come nearer to fp64.

Where it does not help: blocks that ``torch.compile`` fuses (they gain the absence of complex
numbers, which Inductor does not generate code for), a step that is bound by the host's launches or
by attention, short sequences. A CPU runs the same arithmetic in plain PyTorch, and stacks.

Sources: Zhang and Sennrich 2019, arXiv:1910.07467 (RMS norm); Su et al. 2021, arXiv:2104.09864
(RoPE); ``torch.nn.functional.normalize`` (the clamp at 1e-12); Williams et al. 2009 (roofline).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, Guard, ParityClass

ON = "on"
SITE = "flow.qk_norm_rope"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio. One shared core moves a step by up to 3 % between processes."""


class FusedQkNormRope:
    """Swaps the callable of the norm-and-rotate site for the fused one."""

    name = "fused_qk_norm_rope"
    summary = "head RMS norm and RoPE of queries and keys in one kernel each way"
    settings = Settings((OFF, ON))
    env = "LEVER_FUSED_QK_NORM_ROPE"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow", "ss_flow")
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; lossless: one rounding fewer backward."""
        on_cpu = facts.device_type == "cpu"
        memory = Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN)
        return GatingPolicy(
            primaries=("train/tok_s",),
            guards=() if on_cpu else (memory,),
            claims=ParityClass.LOSSLESS,
            primary_margin=CPU_MARGIN if on_cpu else 0.01,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs its site, and Triton where the device is CUDA."""
        reasons = []
        if setting != OFF and SITE not in facts.sites:
            reasons.append(f"{facts.workload} has no site {SITE}")
        if setting != OFF and facts.device_type == "cuda" and not _has_triton():
            reasons.append("the CUDA kernels need triton, which is not installed")
        return tuple(reasons)

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Put the fused callable in the site; returns the one that was there."""
        if setting == OFF:
            return site.launch
        from levers.kernels.qk_norm_rope import qk_norm_rope

        found, site.launch = site.launch, qk_norm_rope
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
        """Forward and backward, with and without positions, ragged rows, adversarial values."""
        del setting
        from levers.kernels.qk_norm_rope_cases import op_cases

        return op_cases(device)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


LEVER = FusedQkNormRope()
