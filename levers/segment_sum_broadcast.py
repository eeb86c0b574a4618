"""The broadcast of per-sample modulation rows, with an fp32 segment sum as its backward.

What changes: a diffusion transformer on packed sequences broadcasts six rows per block and sample
(two scales, two shifts, two gates) over the sample's tokens as ``mod[batch_map]``. The forward
stays a gather, bit for bit; the backward becomes a sum of each sample's contiguous rows,
accumulated in fp32 and rounded once to the rows' dtype.

Mechanism: the backward of advanced indexing is ``index_put_(accumulate=True)``. On CUDA one warp
walks all rows of a sample for 128 channels, one load-add-store after the other, so that the time is
proportional to the *longest* sample and leaves most of the device idle: 57 % of a published 1.3 B
training step, 2.10x without it. It also rounds to bf16 after each row: once the running sum is 256
times an addend, the addend vanishes, and a gradient with a mean of one sigma over 2,222 rows loses
half its norm.

Where it does not help: a CPU, in speed (indexing is a serial loop there, of about 2 ns an element,
in a step that spends over 100 ns on each: a few percent at most; the gradients gain the same
accuracy), blocks whose modulation is frozen (no backward), one short sample in a batch, fp32
modulation (the error is gone, the walk is not), blocks that ``torch.compile`` fuses as a whole, and
kernels that fuse modulation and sum, which leave no broadcast to replace.

Sources: PyTorch ``aten/src/ATen/native/cuda/Indexing.cu`` (``indexing_backward_kernel``) and
``native/cpu/IndexKernel.cpp`` (serial where it accumulates); Higham, Accuracy and Stability of
Numerical Algorithms, ch. 4 (recursive against blocked summation).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, Guard, ParityClass

ON = "on"
SITE = "flow.broadcast"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio. One shared core moves a step by up to 3 % between processes; a margin below the noise
would leave every verdict open."""


class SegmentSumBroadcast:
    """Swaps the callable of the broadcast site for the one with the segment sum."""

    name = "segment_sum_broadcast"
    summary = "fp32 segment sum as the backward of the packed modulation broadcast"
    settings = Settings((OFF, ON))
    env = "LEVER_SEGMENT_SUM_BROADCAST"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow",)
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; lossless, since a better sum differs."""
        on_cpu = facts.device_type == "cpu"
        memory = Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN)
        return GatingPolicy(
            primaries=("train/tok_s",),
            guards=() if on_cpu else (memory,),
            claims=ParityClass.LOSSLESS,
            primary_margin=CPU_MARGIN if on_cpu else 0.01,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs the broadcast site, and Triton where the device is CUDA."""
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
        """Put our broadcast in the site; returns the callable that was there."""
        if setting == OFF:
            return site.launch
        from levers.kernels.segment_sum import broadcast

        found, site.launch = site.launch, broadcast
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
        """Forward and backward over lengths, means, dtypes and adversarial values."""
        del setting
        from levers.kernels.segment_sum_cases import op_cases

        return op_cases(device)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


LEVER = SegmentSumBroadcast()
