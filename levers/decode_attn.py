"""Which kernel computes the attention of a decode step.

What changes: the callable of the attention site, and whose split rule is asked. ``triton`` is our
split-KV kernel, ``fa2`` flash-attention 2 and ``fa3`` FlashAttention-3 (``fwd_kvcache`` of both,
with ``num_splits``), ``torch`` our plain form. ``off`` is the workload's parameter ``attn``; a
setting that equals it would change nothing and is unmet.

Mechanism: a step reads every cached key and value once, and at batch 1 that takes less time than
the launches around it: 8.4 MB at 2048 tokens, 8 KV heads of 128, are 2.0 us at 4.3 TB/s, where FA3
takes 13.75 us on an H200 and 12.85 us with 16 splits. So what differs is latency: the number of
launches (FA3 has a small kernel before, FA2 and the others a merge behind), how soon the first
loads leave, how a group of query heads shares a tile. At batch 32 with 4096 tokens it is bandwidth
and the split rule: FA2 takes 193 us, FA3 140 us, FA2 with 2 splits 136 us.

Per setting: ``fa2`` reads pages of a multiple of 256 slots, which the default page is not: use
``--set page_size=256``, or the contiguous cache (``--set kv=contiguous``). ``fa3`` is built for
compute capability 9.x and chooses its splits on the device (see ``fa2_nsplits_cap``). ``torch``
reads lengths on the host, so that no CUDA graph of the step can be captured.

Where it does not help: steps whose time is weights (short contexts, small batches of large models),
prefill, which has its own attention, and a CPU, where the plain form is all there is.

Numerics: the same products in 16 bits with fp32 sums in another order, so lossless and never
byte-exact.

Sources: Dao 2023, FlashAttention-2, and Dao et al. 2023, Flash-Decoding; Shah et al. 2024,
FlashAttention-3; flash-attn 2.8.3 ``csrc/flash_attn/flash_api.cpp``; ``hopper/flash_api.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.decode_lever import DecodeLever
from levers.kernels.decode_attn_needs import FA2_PAGE, missing_package
from levers.kernels.split_kv_rules import BackendRule

SITE = "decode.attention"
RULES = ("decode.attention.split_rule", "decode.attention.split_rule_contiguous")
BACKENDS = ("triton", "fa2", "fa3", "torch")


class DecodeAttn(DecodeLever):
    """Swaps the callable of the attention site, and asks the split rules for its kernel."""

    name = "decode_attn"
    summary = "kernel of the decode attention: Triton split-KV, flash-attention 2 or 3"
    settings = Settings((OFF, *BACKENDS))
    env = "LEVER_DECODE_ATTN"
    touches: tuple[str, ...] = (*RULES, SITE)
    composes_with: tuple[str, ...] = ("fa2_nsplits_cap",)

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """Sites, device, packages, and what each kernel cannot read."""
        if setting == OFF:
            return ()
        missing = [site for site in self.touches if site not in facts.sites]
        reasons = [f"{facts.workload} has no site {site}" for site in missing]
        if setting == facts.parameters.get("attn"):
            reasons.append(f"the workload's own attention is {setting} already (attn={setting})")
        if setting != "torch" and facts.device_type != "cuda":
            reasons.append(f"{setting} has kernels for CUDA alone, this is a {facts.device_type}")
        reasons += missing_package(setting)
        return (*reasons, *_unreadable(facts, setting))

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The backend's launch, or the rule that was found, asked for the backend."""
        if site.name != SITE:
            return BackendRule(site.launch, setting)
        from levers.kernels.decode_attn import attention_by

        return attention_by(setting)

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """The backend against our own kernel: lengths, GQA ratios, layouts, adversarial values."""
        from levers.kernels.decode_attn_cases import op_cases

        return op_cases(setting, device)


def _unreadable(facts: Facts, setting: str) -> list[str]:
    """Why the kernel cannot run on the cache or in the step of these parameters."""
    paged = facts.parameters.get("kv", "paged") == "paged"
    page = int(facts.parameters.get("page_size") or FA2_PAGE)
    if setting == "fa2" and paged and page % FA2_PAGE:
        return [
            f"fa2 reads pages of {FA2_PAGE} slots or a multiple, not {page}: use --set "
            f"page_size={FA2_PAGE}, or --set kv=contiguous"
        ]
    if setting == "torch" and facts.parameters.get("graph") == "on":
        return ["torch reads lengths on the host and cannot be captured: use --set graph=off"]
    return []


LEVER = DecodeAttn()
