"""Which kernel computes the attention of the flow transformers.

What changes: the callable of the attention site. ``fa2`` is flash-attention 2, ``fa3`` the forward
of FlashAttention-3 with FA2's backward from its log-sum-exp, ``fa4`` FlashAttention-4 (CuTe DSL)
both ways, ``cudnn`` cuDNN's and ``torch-flash`` PyTorch's own. ``off`` is the workload's: PyTorch's
flash-attention 2 by variable lengths on packed samples, by dense shapes on equal ones.

Mechanism: the arithmetic is the same, so all the difference is in how the kernel feeds the tensor
cores: FA2 issues Ampere's synchronous instructions, the others Hopper's asynchronous ones with
copies and softmax behind them. Measured on an H200 at 8 x 4096 tokens, 12 heads of 128, forward and
backward: FA2 316 TFLOP/s, cuDNN 532, FA4 657. Values are read through the strides of the packed
projection where something else keeps that for the backward anyway; elsewhere they are copied, as
the original does: a view that is kept would keep the whole projection, which on an H200 was 5.5 %
of a step's peak memory. Where all samples have as many queries and all as many keys the call is
dense.

Per setting: cuDNN's operator takes one shape a call, so packed samples run one after the other, and
a plan is built for each new length; it takes no sample of one key. ``fa3`` needs both packages and
a device of capability 9.x. ``fa4`` compiles for seconds at the first use of a head dim, packed or
dense, which warm-up covers.

Where it does not help: a CPU (no kernels), short sequences, where launches dominate and fewer
samples than SMs are in flight, and ``torch-flash`` where the original is the same kernel.

Numerics: the same products in bf16 with fp32 sums in another order of keys, so lossless and never
byte-exact; FA2's and FA4's gradients of queries are summed by atomics and may differ from run to
run.

Sources: Dao 2023, FlashAttention-2; Shah et al. 2024, FlashAttention-3; flash-attn-4 4.0.0b36
``flash_attn/cute/interface.py``; PyTorch ``torch/nn/attention/varlen.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.kernels.attn_backend_needs import NEEDS, missing_packages
from levers.known_reports import KnownReport
from levers.policy import GatingPolicy, Guard, ParityClass

SITE = "flow.attention"

BULK_COPIES = KnownReport(
    tool="racecheck",
    kernel="flash_attncuteflash_bwd_sm90FlashAttentionBackwardSm90",
    reason="it does not follow the barrier of raw bulk copies (log-sum-exp, row sums)",
    source="flash-attention repository, AI/RACECHECK_TMA_HAZARD.md",
)
"""``cp.async.bulk`` with an mbarrier between warps, in a loop: the maintainers show the same
reports for a minimal kernel of that kind, which go away with tensor-map copies or a barrier that
the tool knows. FA4's backward on capability 9 copies both rows so (``flash_bwd_sm90.py``)."""

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA."""


class AttnBackend:
    """Swaps the callable of the attention site for one backend's."""

    name = "attn_backend"
    summary = "kernel of the attention: flash-attention 2, 3 or 4, cuDNN, or PyTorch's flash"
    settings = Settings((OFF, *NEEDS))
    env = "LEVER_ATTN_BACKEND"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow", "ss_flow")
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; lossless: the order of sums differs."""
        del facts
        return GatingPolicy(
            primaries=("train/tok_s",),
            guards=(Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN),),
            claims=ParityClass.LOSSLESS,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """Site, device, dtype and packages; the device's capability is seen at the first call."""
        if setting == OFF:
            return ()
        reasons = []
        if SITE not in facts.sites:
            reasons.append(f"{facts.workload} has no site {SITE}")
        if facts.device_type != "cuda":
            reasons.append(f"{setting} has kernels for CUDA alone, this is a {facts.device_type}")
        if facts.parameters.get("matmul", "bf16") != "bf16":
            asked = facts.parameters["matmul"]
            reasons.append(f"{setting} multiplies in bf16 and matmul={asked} asks for more")
        return (*reasons, *missing_packages(setting))

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Put the backend in the site, on the row offsets that the found callable uses."""
        found = site.launch
        if setting == OFF:
            return found
        from levers.kernels.attn_backend import PackedAttention, kept_offsets

        site.launch = PackedAttention(setting, getattr(found, "cu_seqlens", kept_offsets))
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

    def known_reports(self, setting: str) -> tuple[KnownReport, ...]:
        """Of FA4's backward."""
        return (BULK_COPIES,) if setting == "fa4" else ()

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Self and cross attention, ragged and equal lengths, large scores, large means."""
        from levers.kernels.attn_backend_cases import op_cases

        return op_cases(setting, device)


LEVER = AttnBackend()
