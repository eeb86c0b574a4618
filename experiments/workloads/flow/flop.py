"""Closed-form FLOPs of one training step of the flow transformer, and the utilisation they give.

One multiply-accumulate is 2 FLOP. Counted are the matrix products and the attention of the blocks;
embeddings, normalisations, the shared modulation and the optimiser are left out (under 0.2 % at 1.3
B parameters). A recomputation (flash attention's own, a checkpointed block's) is not useful work
and is not counted: this is MFU, not hardware utilisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepFlop:
    """FLOPs of one step: matrix products and attention apart."""

    matmul_flop: float
    attention_flop: float

    @property
    def total_flop(self) -> float:
        """Both together."""
        return self.matmul_flop + self.attention_flop

    def mfu_matmul(self, seconds: float, peak_flop_per_s: float) -> float:
        """Matrix products alone over what the device could do in that time (0..1)."""
        return self.matmul_flop / (seconds * peak_flop_per_s)

    def mfu_true(self, seconds: float, peak_flop_per_s: float) -> float:
        """Matrix products and attention over what the device could do in that time (0..1)."""
        return self.total_flop / (seconds * peak_flop_per_s)

    def ceiling_s(self, matmul_flop_per_s: float, attention_flop_per_s: float) -> float:
        """Seconds of a step that runs each kind of work at its measured ceiling, back to back."""
        return self.matmul_flop / matmul_flop_per_s + self.attention_flop / attention_flop_per_s


def matmul_forward_flop(
    tokens: int, cond_tokens: int, channels: int, mlp: int, cond_channels: int
) -> float:
    """Matrix products of one block's forward for one sample.

    A latent token passes the self-attention's qkv and output (4 C^2), the cross-attention's query
    and output (2 C^2) and the MLP (2 C x mlp); a condition token passes the key-value projection.
    """
    latent = 2 * (6 * channels**2 + 2 * channels * mlp)
    condition = 2 * (2 * cond_channels * channels)
    return float(tokens * latent + cond_tokens * condition)


def attention_forward_flop(tokens: int, cond_tokens: int, channels: int) -> float:
    """Self and cross attention of one block's forward for one sample, not causal: QK^T and PV."""
    return float(4 * tokens * (tokens + cond_tokens) * channels)


def step_flop(
    lengths: Sequence[int],
    cond_tokens: int,
    *,
    channels: int,
    mlp: int,
    cond_channels: int,
    depth: int,
    frozen: int = 0,
) -> StepFlop:
    """FLOPs of forward and backward over a batch, from the actual lengths (not their mean).

    The backward costs two forwards, one for the inputs' and one for the weights' gradients; a
    frozen block saves the latter (the condition still trains, so that the former is needed).
    """
    passes = 3 * depth - frozen
    matmul = sum(matmul_forward_flop(n, cond_tokens, channels, mlp, cond_channels) for n in lengths)
    attention = sum(attention_forward_flop(n, cond_tokens, channels) for n in lengths)
    return StepFlop(matmul_flop=passes * matmul, attention_flop=3 * depth * attention)
