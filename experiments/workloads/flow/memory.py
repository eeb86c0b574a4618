"""How much device memory a step takes, and which batch fits, by closed forms fitted to peaks."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.workloads.flow.config import FlowConfig

TARGET_SHARE = 0.75
"""Share of the device that upstream's elastic memory controller aims at."""

BYTES_PER_TRAINED_WEIGHT = 8
"""fp32 weight and gradient."""

BYTES_OF_ADAM = 8
"""Two fp32 moments of a weight."""

BYTES_PER_TOKEN_CHANNEL = 85
BYTES_PER_DENSE_TOKEN_CHANNEL = 82
BYTES_PER_COND_TOKEN_CHANNEL = 31
"""Kept for the backward by a block, for each channel of a latent or condition token. Fitted on an
H200 at bf16, 30 blocks of 1,536 channels: packed to 45.4 and 111.1 GB at 7,464 and 19,812 tokens (2
and 8 samples), dense to 44.1 GB at 8,192 tokens (2 samples).
"""

FP32_PRODUCTS_FACTOR = 1.5
"""fp32 operands of the products are kept beside bf16 (estimated, not measured)."""


def fixed_bytes(config: FlowConfig) -> int:
    """Weights, gradients and the optimiser's moments: what no batch changes."""
    adam = BYTES_OF_ADAM if config.optimizer == "adamw" else 0
    return config.parameter_count * (BYTES_PER_TRAINED_WEIGHT + adam)


def activation_bytes(config: FlowConfig, lengths: Sequence[int]) -> float:
    """What the blocks keep for the backward of one micro-batch with these lengths."""
    latent = BYTES_PER_DENSE_TOKEN_CHANNEL if config.dense else BYTES_PER_TOKEN_CHANNEL
    condition = BYTES_PER_COND_TOKEN_CHANNEL * config.cond_tokens * len(lengths)
    per_channel = latent * sum(lengths) + condition
    factor = FP32_PRODUCTS_FACTOR if config.matmul == "fp32" else 1.0
    kept_blocks = max(1, config.depth - config.checkpointed)
    return factor * per_channel * config.channels * kept_blocks


def step_bytes(config: FlowConfig) -> int:
    """Peak of a step: its largest micro-batch on top of what is always there."""
    lengths = config.lengths
    batches = (lengths[first : first + config.bs] for first in range(0, len(lengths), config.bs))
    return fixed_bytes(config) + int(max(activation_bytes(config, one) for one in batches))


def largest_batch(config: FlowConfig, device_memory_bytes: int, share: float = TARGET_SHARE) -> int:
    """Samples of the step's mean length that fit in that share of the device; 0 if none does.

    Peaks are linear in tokens, so that the room over bytes a sample is the answer.
    """
    lengths = config.lengths
    sample = activation_bytes(config, lengths) / len(lengths)
    return max(0, int((share * device_memory_bytes - fixed_bytes(config)) / sample))
