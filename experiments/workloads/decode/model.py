"""The decoder: its weights, its blocks, and the way through them, each operation at its site.

Shape suffixes: N tokens (any batch layout, flattened), C hidden size, H query heads, K KV heads,
D head dimension, I intermediate size, J = 2I, E projected width, V vocabulary.

The attention itself is an argument (``attend``), so that training, prefill, the decode step and the
oracle share every other operation. The function computed is that of ``Qwen3ForCausalLM`` and
``LlamaForCausalLM`` in transformers, against which the logits are tested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.operations import RopeTables as RopeTables
from experiments.workloads.decode.operations import causal_attention as causal_attention
from experiments.workloads.decode.operations import rms_norm
from experiments.workloads.decode.operations import rope_tables as rope_tables
from experiments.workloads.decode.sites import DecodeSites

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q_NHD, k_NKD, v_NKD) -> o_NHD``; it stores the keys and values first."""

Rope = tuple[Tensor, Tensor]
"""``cos_N1D, sin_N1D`` of the tokens' positions."""


class StoredMatrix(Protocol):
    """A weight matrix in a form of its own, such as four-bit blocks."""

    @property
    def shape(self) -> torch.Size | tuple[int, ...]:
        """``(E, C)``: outputs and inputs."""

    @property
    def nbytes(self) -> int:
        """Bytes that are read for one product."""

    def linear(self, x_NC: Tensor) -> Tensor:
        """``x @ matrix.T``, ``[N, E]``."""

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """The matrix ``[E, C]`` written out."""


Matrix = Tensor | StoredMatrix


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block's weights; projections that read the same input are stored as one matrix."""

    input_norm_C: Tensor
    qkv_EC: Matrix
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    o_CE: Matrix
    post_norm_C: Tensor
    gate_up_JC: Matrix
    down_CI: Matrix

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices in the order of their use."""
        return self.qkv_EC, self.o_CE, self.gate_up_JC, self.down_CI

    @property
    def qk_norms(self) -> tuple[Tensor, Tensor] | None:
        """The norms of each query and key head, or None (Llama)."""
        if self.q_norm_D is None or self.k_norm_D is None:
            return None
        return self.q_norm_D, self.k_norm_D


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a decoder; ``head_VC`` is ``embed_VC`` where they are tied and both plain."""

    embed_VC: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm_C: Tensor
    head_VC: Matrix

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.embed_VC.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations and plain weights."""
        return self.embed_VC.dtype


@dataclass(frozen=True, slots=True)
class Block:
    """What the callable at ``decode.block`` is given of one block.

    Attributes:
        heads: query heads and KV heads, ``(H, K)``.
        next_norm_C: the norm that follows the block: the next block's input norm or the final one.
    """

    index: int
    config: ModelConfig
    weights: LayerWeights
    next_norm_C: Tensor
    heads: tuple[int, int]
    sites: DecodeSites


class Decoder:
    """The blocks of one set of weights, ready to be run."""

    def __init__(self, config: ModelConfig, weights: Weights, sites: DecodeSites) -> None:
        self.config, self.weights, self.sites = config, weights, sites
        norms = [*(layer.input_norm_C for layer in weights.layers[1:]), weights.final_norm_C]
        heads = (config.num_q_heads, config.num_kv_heads)
        self.blocks = tuple(
            Block(index, config, layer, norm, heads, sites)
            for index, (layer, norm) in enumerate(zip(weights.layers, norms, strict=True))
        )

    def hidden_states(self, tokens_N: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """The normalised hidden states of flat tokens, ``[N, C]``."""
        run = self.sites.block
        x_NC: Tensor = functional.embedding(tokens_N, self.weights.embed_VC)
        delta_NC: Tensor | None = None
        for block in self.blocks:
            x_NC, delta_NC = run(block, x_NC, delta_NC, rope, attend)
        final_norm_C, eps = self.weights.final_norm_C, self.config.rms_norm_eps
        if delta_NC is None:
            return rms_norm(x_NC, final_norm_C, eps)
        return self.sites.add_norm(x_NC, delta_NC, final_norm_C, eps)[1]

    def logits(self, x_NC: Tensor) -> Tensor:
        """Logits over the vocabulary, ``[N, V]``."""
        return self.sites.linear(x_NC, self.weights.head_VC, "head")


def hidden_states(
    config: ModelConfig, weights: Weights, tokens_N: Tensor, rope: Rope, attend: Attend
) -> Tensor:
    """The normalised hidden states of flat tokens, each operation in its original form."""
    return Decoder(config, weights, DecodeSites()).hidden_states(tokens_N, rope, attend)


def logits(weights: Weights, x_NC: Tensor) -> Tensor:
    """Logits over the vocabulary, ``[N, V]``, in their original form."""
    return DecodeSites().linear(x_NC, weights.head_VC, "head")
