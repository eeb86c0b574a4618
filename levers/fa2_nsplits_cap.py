"""A cap on the number of KV splits of decode attention, as FlashAttention-2 chooses it.

What changes: the split rule of the decode attention, over pages and over a contiguous cache.
``off`` leaves flash-attention 2's heuristic alone; ``N`` takes ``min(heuristic, N)``; ``auto``
takes ``min(heuristic, max(1, SMs // blocks))``, at most one wave of the real SMs, with blocks =
batch x KV heads. ``tuned`` is no cap: it takes the fastest count of a measured table of the device
and backend (:mod:`levers.kernels.tuned_splits`), which may be larger than the heuristic's.

Backends: our plain and Triton kernels and flash-attention 2 follow the heuristic. FlashAttention-3
decides on the device; ``off`` leaves it that, and ``N`` and ``auto`` are handed to it as the most
splits that it may use. Which backend runs is the lever ``decode_attn``, which composes with this.

Mechanism: the heuristic is handed *twice* the number of SMs and splits a small batch up to the
number of KV blocks, because every split count leaves less than one wave. Each split costs a launch
slot, a partial result in memory and a share of the merge. On a published device of 48 SMs batch 1
is split 7 times (about 41 us a layer) where 3 splits take about 32 us. ``auto`` picks 6 there and
not 3, and also moves batches of 4 and 8: off, auto and each N are different arms.

Where it does not help: from the batch at which the heuristic itself gives one split (16 with 8 KV
heads and 48 SMs); with short contexts of one KV block; and on devices with many SMs, where the
heuristic splits too *little*: on an H200 (132 SMs) with flash-attention 2.8.3 at 4096 tokens,
batch 1 runs in 17.4 us by the heuristic and in 14.2 us with 16 splits, and batch 32 in 193 us and
136 us with 2 splits, so that a cap can only lose there and ``tuned`` is the arm to measure. A
verdict belongs to its device and backend.

Numerics: other split counts sum in another order. Results differ in their last bits and are no less
exact against fp64, so the lever claims lossless and never byte-exact.

Sources: flash-attention 2 ``csrc/flash_attn/flash_api.cpp`` (``num_splits_heuristic`` and its
caller); Dao et al. 2023, Flash-Decoding (the merge through log-sum-exp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.decode_lever import DecodeLever
from levers.kernels.split_heuristic import MAX_SPLITS
from levers.kernels.split_kv_rules import TUNED, CappedRule
from levers.kernels.tuned_splits import COMMAND, measured_on

AUTO = "auto"
SITE = "decode.attention.split_rule"
"""The rule of a launch over pages."""
CONTIGUOUS_SITE = "decode.attention.split_rule_contiguous"
"""The rule of a launch over a contiguous cache; a workload asks the rule of the cache it has."""


class Fa2NsplitsCap(DecodeLever):
    """Wraps the split rule that it finds in each site with the cap."""

    name = "fa2_nsplits_cap"
    summary = "cap on the KV splits of decode attention, or counts from a measured table"
    settings = Settings((OFF, AUTO, TUNED), 1, MAX_SPLITS)
    env = "LEVER_FA2_NSPLITS_CAP"
    touches: tuple[str, ...] = (SITE, CONTIGUOUS_SITE)
    composes_with: tuple[str, ...] = ("decode_attn",)

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs an attention that takes a split count, and ``tuned`` a table of the device."""
        if setting == OFF:
            return ()
        reasons = [
            f"{facts.workload} has no site {site}: its attention takes no split count"
            for site in self.touches
            if site not in facts.sites
        ]
        if setting == TUNED:
            reasons += _without_table(facts)
        return tuple(reasons)

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The rule that is there, capped."""
        return CappedRule(site.launch, setting, _device_name)

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Attention with the heuristic's splits against those of the setting."""
        from levers.kernels.split_kv_cap_cases import op_cases

        return op_cases(setting, device)


def _without_table(facts: Facts) -> list[str]:
    """Why ``tuned`` has nothing to go by here; the device's name is known to its process alone."""
    if facts.device_type != "cuda":
        return [f"no split table was measured on a {facts.device_type}: use auto or a number"]
    sm_count = facts.parameters.get("sm_count")
    if sm_count is None or measured_on(int(sm_count)):
        return []
    return [f"no split table was measured on a device of {sm_count} SMs: run `{COMMAND}` on it"]


def _device_name() -> str:
    """The name of the device in use, as tables carry it."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


LEVER = Fa2NsplitsCap()
