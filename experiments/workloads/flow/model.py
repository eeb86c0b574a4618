"""The flow transformer: TRELLIS.2's denoisers, packed and dense, with the shared modulation.

Both run on packed rows ``[N, C]``; the layout says whether they are a dense ``[B, N / B, C]``.

Shapes: B samples, N packed tokens, M packed condition tokens, C channels, F MLP hidden width, H
heads, D head dim, P channel pairs of a head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.linear import BlockLinear, Linear, TimeEmbedding
from experiments.workloads.flow.names import BLOCK, QK_NORM_ROPE
from experiments.workloads.flow.original import QkNormRope
from experiments.workloads.flow.precision import Precision
from experiments.workloads.flow.sites import Sites

FINAL_NORM_EPS = 1e-5


class SelfAttention(nn.Module):
    """Attention of a sample's tokens to each other; RMS norm of the heads first, then RoPE."""

    def __init__(self, config: FlowConfig, sites: Sites, precision: Precision) -> None:
        super().__init__()
        c, self.heads, self.sites = config.channels, config.heads, sites
        self.published = QkNormRope(precision)
        self.to_qkv = BlockLinear(c, 3 * c, precision, sites)
        self.q_gamma = nn.Parameter(torch.ones(config.heads, config.head_dim))
        self.k_gamma = nn.Parameter(torch.ones(config.heads, config.head_dim))
        self.to_out = BlockLinear(c, c, precision, sites, gain=(2 * config.depth) ** -0.5)

    def project(self, h_NC: Tensor) -> Tensor:
        """Queries, keys and values of one product: ``[N, 3, H, D]``."""
        return torch.unflatten(self.to_qkv(h_NC), -1, (3, self.heads, -1))

    def turn(self, qkv: Tensor, phases_NP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys normalised and turned, and values: ``[N, H, D]`` each."""
        return self.sites.qk_norm_rope(None, qkv, self.q_gamma, self.k_gamma, phases_NP)

    def turn_apart(self, q: Tensor, k: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """The same as published, of queries and keys alone."""
        return self.published.rows(q, k, self.q_gamma, self.k_gamma, phases)


class CrossAttention(nn.Module):
    """Attention of a sample's tokens to its condition tokens; RMS norm of the heads, no RoPE."""

    def __init__(self, config: FlowConfig, sites: Sites, precision: Precision) -> None:
        super().__init__()
        c, self.heads, self.sites = config.channels, config.heads, sites
        self.published = QkNormRope(precision)
        self.to_q = BlockLinear(c, c, precision, sites)
        self.to_kv = BlockLinear(config.cond_channels, 2 * c, precision, sites)
        self.q_gamma = nn.Parameter(torch.ones(config.heads, config.head_dim))
        self.k_gamma = nn.Parameter(torch.ones(config.heads, config.head_dim))
        self.to_out = BlockLinear(c, c, precision, sites, gain=(2 * config.depth) ** -0.5)

    def project(self, h_NC: Tensor, cond: Tensor) -> tuple[Tensor, Tensor]:
        """Queries ``[N, H, D]``; keys and values of one product, ``[M, 2, H, D]``."""
        q = self.to_q(h_NC).unflatten(-1, (self.heads, -1))
        return q, self.to_kv(cond).unflatten(-1, (2, self.heads, -1))

    def turn(self, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys normalised, and values: ``[N, H, D]``, ``[M, H, D]`` twice."""
        return self.sites.qk_norm_rope(q, kv, self.q_gamma, self.k_gamma, None)

    def turn_apart(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The same as published, of queries and keys alone."""
        return self.published.rows(q, k, self.q_gamma, self.k_gamma, None)


class Open(NamedTuple):
    """A stream whose last branch is not added yet: the next block's norm takes the sum."""

    x_NC: Tensor
    h_NC: Tensor
    gate_BC: Tensor


class Block(nn.Module):
    """Self-attention, cross-attention and MLP; the first and the last are modulated and gated.

    Six rows of ``[B, C]`` are broadcast over the tokens: two scales, two shifts, two gates. The
    block is written in the parts that lie between its attentions, so that each part can be compiled
    whole, whatever runs the attention.
    """

    def __init__(self, config: FlowConfig, sites: Sites, precision: Precision) -> None:
        super().__init__()
        c, self.sites = config.channels, sites
        self.modulation = nn.Parameter(torch.randn(6 * c) / math.sqrt(c))
        self.self_attention = SelfAttention(config, sites, precision)
        self.norm_weight = nn.Parameter(torch.ones(c))
        self.norm_bias = nn.Parameter(torch.zeros(c))
        self.cross_attention = CrossAttention(config, sites, precision)
        self.up = BlockLinear(c, config.mlp, precision, sites)
        self.down = BlockLinear(config.mlp, c, precision, sites, gain=(2 * config.depth) ** -0.5)

    def forward(
        self,
        x: Tensor | Open,
        mod: Tensor,
        layout: PackedLayout,
        phases: Tensor,
        cond: Tensor,
        cond_layout: PackedLayout,
        opened: bool = False,
    ) -> Tensor | Open:
        """``x [N, C]``, ``mod [B, 6C]``, ``phases [N, P]``, ``cond [M, Cc]`` to ``[N, C]``.

        The stream that comes out is left open where ``opened`` asks for it.
        """
        shift1, scale1, gate1, shift2, scale2, gate2 = self.rows(mod)
        x, qkv = self.enter(x, shift1, scale1, layout)
        h = self.attend(*self.turn_self(qkv, phases), layout, layout)
        x, q, kv = self.cross(x, h, gate1, layout, cond)
        q, k, v = self.turn_cross(q, kv)
        h = self.attend(q, k, v, layout, cond_layout)
        if opened:
            return Open(*self.last_branch(x, h, shift2, scale2, layout), gate2)
        return self.leave(x, h, shift2, scale2, gate2, layout)

    @property
    def turns_as_published(self) -> bool:
        """Whether nothing has replaced the norm and rotation of queries and keys."""
        return self.sites.is_original(QK_NORM_ROPE)

    def rows(self, mod: Tensor) -> tuple[Tensor, ...]:
        """Shift, scale and gate of the first part, then of the last: ``[B, C]`` each."""
        return (self.modulation + mod).to(mod.dtype).chunk(6, dim=1)

    def enter(
        self, x: Tensor | Open, shift: Tensor, scale: Tensor, layout: PackedLayout
    ) -> tuple[Tensor, Tensor]:
        """Modulate; the stream, and the self-attention's projection ``[N, 3, H, D]``."""
        if isinstance(x, Open):
            h, on = self.sites.residual_norm(*x, shift, scale, layout)
        else:
            h, on = self.sites.modulate(x, shift, scale, layout)
        return on, self.self_attention.project(h)

    def turn_self(self, qkv: Tensor, phases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise and turn the self-attention's queries and keys."""
        return self.self_attention.turn(qkv, phases)

    def turn_self_apart(self, q: Tensor, k: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """The same as published, of queries and keys alone."""
        return self.self_attention.turn_apart(q, k, phases)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, queries: PackedLayout, keys: PackedLayout
    ) -> Tensor:
        """``[N, C]`` from either attention."""
        return self.sites.attention(q, k, v, queries, keys).flatten(1)

    def cross(
        self, x: Tensor, h: Tensor, gate: Tensor, layout: PackedLayout, cond: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add the self-attention; the stream, and what goes into the cross-attention."""
        h = self.self_attention.to_out(h)
        norm = self.norm_bias, self.norm_weight
        h, x = self.sites.residual_norm(x, h, gate, *norm, layout)
        return x, *self.cross_attention.project(h, cond)

    def turn_cross(self, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise the cross-attention's queries and keys."""
        return self.cross_attention.turn(q, kv)

    def turn_cross_apart(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The same as published, of queries and keys alone."""
        return self.cross_attention.turn_apart(q, k)

    def leave(
        self,
        x: Tensor,
        h: Tensor,
        shift: Tensor,
        scale: Tensor,
        gate: Tensor,
        layout: PackedLayout,
    ) -> Tensor:
        """Add the cross-attention, then the modulated and gated MLP."""
        x, h = self.last_branch(x, h, shift, scale, layout)
        return self.sites.gate_residual(x, h, gate, layout)

    def last_branch(
        self, x: Tensor, h: Tensor, shift: Tensor, scale: Tensor, layout: PackedLayout
    ) -> tuple[Tensor, Tensor]:
        """Add the cross-attention; the stream, and the modulated MLP that is not added yet."""
        h = self.cross_attention.to_out(h)
        h, x = self.sites.residual_norm(x, h, None, shift, scale, layout)
        up, down = self.up, self.down
        return x, self.sites.mlp(h, up.weight, up.bias, down.weight, down.bias)


class FlowModel(nn.Module):
    """Velocity of the flow for each token of a batch.

    Between two blocks that run as they are the stream is left open, so that the sum and the next
    norm meet in one site. A recomputed block keeps a closed one, half as many rows, and compiled
    parts take one in and give one out.

    Upstream initialises the output and the shared modulation with zeros. Here they are small and
    random, as after some training, so that no gradient is zero and each one can be compared.
    """

    def __init__(self, config: FlowConfig, sites: Sites, precision: Precision) -> None:
        super().__init__()
        c = config.channels
        self.config, self.precision, self.sites = config, precision, sites
        self.embed = Linear(config.latent, c, precision)
        self.time = TimeEmbedding(c, precision)
        self.shared_modulation = Linear(c, 6 * c, precision, gain=0.5)
        self.blocks = nn.ModuleList(Block(config, sites, precision) for _ in range(config.depth))
        self.project = Linear(c, config.latent, precision, gain=0.5)
        for module in [self.embed, self.time, self.shared_modulation, *self.blocks][: self._frozen]:
            module.requires_grad_(requires_grad=False)

    @property
    def _frozen(self) -> int:
        return 3 + self.config.frozen if self.config.frozen else 0

    def _left_open(self, index: int) -> tuple[bool, ...]:
        """What a block is told beside its inputs; one that was replaced is told nothing."""
        if not self.sites.is_original(BLOCK):
            return ()
        return (index + 1 < self.config.depth,)

    def forward(
        self,
        x_NL: Tensor,
        t_B: Tensor,
        layout: PackedLayout,
        phases_NP: Tensor,
        cond: Tensor,
        cond_layout: PackedLayout,
    ) -> Tensor:
        """``[N, latent]`` in the stream's dtype."""
        x: Tensor | Open = self.embed(x_NL)
        mod = self.shared_modulation(F.silu(self.time(t_B)))
        for index, block in enumerate(self.blocks):
            arguments = (x, mod, layout, phases_NP, cond, cond_layout)
            if index < self.config.checkpointed:
                x = checkpoint(self.sites.block, block, *arguments, use_reentrant=False)
            else:
                x = self.sites.block(block, *arguments, *self._left_open(index))
        assert isinstance(x, Tensor)
        wide = x.to(self.precision.norm)
        out: Tensor = self.project(F.layer_norm(wide, wide.shape[-1:], eps=FINAL_NORM_EPS))
        return out
