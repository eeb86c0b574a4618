"""The decoder's arithmetic: RMS norm, grouped-query projections, rotary positions, SwiGLU.

Shape suffixes: N tokens (any batch layout, flattened), C hidden size, H query heads, K KV heads,
D head dimension, I intermediate size, V vocabulary, T positions.

The attention itself is an argument (``attend``), so that training, prefill, the paged decode step
and the oracle share every other operation. The function computed is that of ``Qwen3ForCausalLM``
and ``LlamaForCausalLM`` in transformers, against which the logits are tested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from experiments.workloads.decode.config import ModelConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q_NHD, k_NKD, v_NKD) -> o_NHD``."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block's weights; projections that read the same input are stored as one matrix."""

    input_norm_C: Tensor
    qkv_EC: Tensor
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    o_CE: Tensor
    post_norm_C: Tensor
    gate_up_JC: Tensor
    down_CI: Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a decoder; ``head_VC`` is ``embed_VC`` where they are tied."""

    embed_VC: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm_C: Tensor
    head_VC: Tensor

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.embed_VC.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return self.embed_VC.dtype


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
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inverse = 1.0 / (config.rope_theta**half)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    full = torch.cat((angles, angles), dim=-1)
    return RopeTables(full.cos().to(device, dtype), full.sin().to(device, dtype))


def rotate(x_NHD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
    """Apply rotary positions to every head."""
    first, second = x_NHD.chunk(2, dim=-1)
    return x_NHD * cos_N1D + torch.cat((-second, first), dim=-1) * sin_N1D


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension (Zhang and Sennrich 2019)."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def qkv_heads(
    config: ModelConfig, layer: LayerWeights, x_NC: Tensor, rope: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Projected, normalised and rotated ``q_NHD k_NKD`` and projected ``v_NKD``."""
    h, k, d = config.num_q_heads, config.num_kv_heads, config.head_dim
    heads = functional.linear(x_NC, layer.qkv_EC).view(x_NC.shape[0], h + 2 * k, d)
    q_NHD, k_NKD, v_NKD = torch.split(heads, [h, k, k], dim=1)
    if layer.q_norm_D is not None and layer.k_norm_D is not None:
        q_NHD = rms_norm(q_NHD, layer.q_norm_D, config.rms_norm_eps)
        k_NKD = rms_norm(k_NKD, layer.k_norm_D, config.rms_norm_eps)
    return rotate(q_NHD, *rope), rotate(k_NKD, *rope), v_NKD


def swiglu(layer: LayerWeights, x_NC: Tensor) -> Tensor:
    """The gated MLP (Shazeer 2020)."""
    gate_NI, up_NI = functional.linear(x_NC, layer.gate_up_JC).chunk(2, dim=-1)
    return functional.linear(functional.silu(gate_NI) * up_NI, layer.down_CI)


def hidden_states(
    config: ModelConfig,
    weights: Weights,
    tokens_N: Tensor,
    rope: tuple[Tensor, Tensor],
    attend: Attend,
) -> Tensor:
    """The normalised hidden states of flat tokens, ``x_NC``."""
    x_NC = functional.embedding(tokens_N, weights.embed_VC)
    for index, layer in enumerate(weights.layers):
        normed = rms_norm(x_NC, layer.input_norm_C, config.rms_norm_eps)
        attended = attend(index, *qkv_heads(config, layer, normed, rope))
        x_NC = x_NC + functional.linear(attended.reshape(x_NC.shape[0], -1), layer.o_CE)
        x_NC = x_NC + swiglu(layer, rms_norm(x_NC, layer.post_norm_C, config.rms_norm_eps))
    return rms_norm(x_NC, weights.final_norm_C, config.rms_norm_eps)


def logits(weights: Weights, x_NC: Tensor) -> Tensor:
    """Logits over the vocabulary, ``[N, V]``."""
    return functional.linear(x_NC, weights.head_VC)


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
