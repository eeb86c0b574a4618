"""How many KV splits a decode attention uses, and the cap on it (torch-free).

A decode step has one query token a sequence, so that a grid over batch and heads leaves most of a
device idle; split-KV cuts each sequence into pieces that run side by side and are merged
afterwards. The rule is that of ``num_splits_heuristic`` in flash-attention 2
(csrc/flash_attn/flash_api.cpp), whose caller hands it twice the number of SMs; the plain PyTorch
form and our Triton kernel follow it. FlashAttention-3 decides on the device, sequence by sequence,
and takes a number as the most that it may use (hopper/flash_api.cpp): its rule is OWN_RULE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_SPLITS = 128
"""Largest number of splits (flash-attention 2)."""
BUSY_SHARE = 0.8
"""With this share of the SM argument filled by blocks alone, nothing is split."""
GOOD_ENOUGH = 0.85
"""The fewest splits whose efficiency is this share of the best one are taken."""
SM_FACTOR = 2
"""The caller in flash-attention 2 passes twice the number of SMs."""
OWN_RULE = 0
"""Stands for the backend's own rule: what ``num_splits=0`` means to flash-attention 2 and 3."""
OWN_RULES = ("fa3",)
"""Backends whose rule is not known before the launch."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """What a split rule may know of one attention launch.

    Attributes:
        batch: sequences in the step.
        kv_heads: heads of the grid: the query heads of one KV head share a block.
        kv_tokens: capacity of the longest sequence, in tokens (flash-attention 2 plans with the
            capacity of the cache and not with the lengths of the moment, which are on the device).
        kv_block: tokens of one KV block.
        sm_count: real SMs of the device.
        backend: whose kernel is launched, where the rule depends on it; empty where the kernel
            follows flash-attention 2's.
        query_heads: query heads, 0 where the planner does not say.
    """

    batch: int
    kv_heads: int
    kv_tokens: int
    kv_block: int
    sm_count: int
    backend: str = ""
    query_heads: int = 0

    @property
    def blocks(self) -> int:
        """Blocks of the grid before splitting."""
        return self.batch * self.kv_heads

    @property
    def kv_blocks(self) -> int:
        """KV blocks of the longest sequence."""
        return max(1, -(-self.kv_tokens // self.kv_block))


def kv_block_tokens(head_dim: int) -> int:
    """Tokens of a KV block by head dimension (``kBlockN`` of flash-attention 2's split kernel)."""
    if head_dim <= 64:
        return 256
    return 128 if head_dim <= 128 else 64


def heuristic_splits(blocks: int, sm_argument: int, kv_blocks: int) -> int:
    """The split count of flash-attention 2.

    Args:
        blocks: batch x heads in the grid x query blocks.
        sm_argument: what the caller passes as the number of SMs.
        kv_blocks: KV blocks of the longest sequence.

    Returns:
        The fewest eligible splits whose wave efficiency is within 85 % of the best. A count is
        eligible if it makes the pieces shorter than one split fewer does.
    """
    if blocks >= BUSY_SHARE * sm_argument:
        return 1
    limit = min(MAX_SPLITS, sm_argument, kv_blocks)
    efficiency: dict[int, float] = {}
    for splits in range(1, limit + 1):
        if splits == 1 or -(-kv_blocks // splits) != -(-kv_blocks // (splits - 1)):
            waves = blocks * splits / sm_argument
            efficiency[splits] = waves / math.ceil(waves)
    best = max(efficiency.values(), default=1.0)
    return next((s for s, e in efficiency.items() if e >= GOOD_ENOUGH * best), 1)


def upstream_splits(shape: DecodeShape) -> int:
    """What the backend launches by itself: flash-attention 2's heuristic fed twice the SMs.

    ``OWN_RULE`` for a backend that decides on the device.
    """
    if shape.backend in OWN_RULES:
        return OWN_RULE
    return heuristic_splits(shape.blocks, SM_FACTOR * shape.sm_count, shape.kv_blocks)


def capped_splits(shape: DecodeShape, setting: str, splits: int) -> int:
    """The split count after the cap.

    Args:
        shape: the launch.
        setting: ``off`` leaves ``splits``; ``auto`` caps it at the splits that fill one wave of the
            real SMs; an integer caps it at that.
        splits: what the rule below the cap has chosen. ``OWN_RULE`` is no number to compare with:
            the backend takes the cap itself, as the most that its own rule may use.

    Raises:
        ValueError: the setting is none of these.
    """
    if setting == "off":
        return splits
    cap = max(1, shape.sm_count // shape.blocks) if setting == "auto" else int(setting)
    return cap if splits == OWN_RULE else min(splits, cap)
