"""The arithmetic of a Qwen3 / Llama decoder that no lever replaces by itself.

Shape suffixes: N tokens (any batch layout, flattened), H query heads, K KV heads, D head dimension,
T positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from experiments.workloads.decode.config import ModelConfig


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Cosines and sines of all positions, each half repeated (the ``rotate_half`` convention)."""

    cos_TD: Tensor
    sin_TD: Tensor

    def at(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """``cos_N1D, sin_N1D`` of the given positions."""
        cos = self.cos_TD.index_select(0, positions_N).unsqueeze(1)
        return cos, self.sin_TD.index_select(0, positions_N).unsqueeze(1)


def rope_tables(
    config: ModelConfig, positions: int, device: torch.device, dtype: torch.dtype
) -> RopeTables:
    """Rotary tables of positions ``0 .. positions - 1`` (Su et al. 2021), computed in fp32."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), rope_frequencies(config))
    full = torch.cat((angles, angles), dim=-1)
    return RopeTables(full.cos().to(device, dtype), full.sin().to(device, dtype))


def rope_frequencies(config: ModelConfig) -> Tensor:
    """Angles of one position, ``[D / 2]``, stretched where the configuration says so.

    The stretch is that of Llama 3.1 (``_compute_llama3_parameters`` in transformers): a pair turns
    ``turns`` times in the original context; the share of its frequency that is kept grows from 0 to
    1 between the two frequency factors.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inverse = 1.0 / (config.rope_theta**half)
    scaling = config.rope_scaling
    if scaling is None:
        return inverse
    turns = scaling.original_positions * inverse / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * inverse + (1.0 - kept) * inverse / scaling.factor


def rotate(x_NHD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
    """Apply rotary positions to every head."""
    first, second = x_NHD.chunk(2, dim=-1)
    return x_NHD * cos_N1D + torch.cat((-second, first), dim=-1) * sin_N1D


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension (Zhang and Sennrich 2019)."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def causal_attention(q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, batch: int) -> Tensor:
    """Causal attention inside each of ``batch`` equally long sequences, ``o_NHD``.

    One place for training and prefill; the decode step has its own attention.
    """

    def split(x: Tensor) -> Tensor:
        return x.view(batch, -1, x.shape[1], x.shape[2]).transpose(1, 2)

    q_BHTD, k_BKTD, v_BKTD = split(q_NHD), split(k_NKD), split(v_NKD)
    grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
    out = functional.scaled_dot_product_attention(
        q_BHTD, k_BKTD, v_BKTD, is_causal=True, enable_gqa=grouped
    )
    return out.transpose(1, 2).reshape(q_NHD.shape)
