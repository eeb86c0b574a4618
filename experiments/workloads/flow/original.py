"""The original path of each site: the operations as published, which the levers replace.

Shapes: B samples, N packed tokens, M packed condition tokens, C channels, H heads, D head dim, P
pairs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.precision import Precision
from experiments.workloads.flow.rope import rotate

BLOCK_NORM_EPS = 1e-6

S = TypeVar("S")

Broadcast = Callable[[Tensor, PackedLayout], Tensor]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Hidden = Callable[[Tensor, Tensor, Tensor], Tensor]
Normed = tuple[Tensor, Tensor]
"""Normed rows, and the stream to go on with."""


def broadcast(mod_BC: Tensor, layout: PackedLayout) -> Tensor:
    """Each sample's row for each of its tokens, ``[N, C]``, by advanced indexing.

    Its backward is ``index_put_(accumulate=True)`` in the gradient's dtype, which walks a sample's
    rows one after the other (on CUDA one warp for 128 channels of a sample) and rounds after each.
    A dense batch needs no gather: ``[B, 1, C]`` is spread by the operation that uses it, and the
    backward of that is a sum.
    """
    return mod_BC[:, None] if layout.dense else mod_BC[layout.batch_map]


def _beside(x_NC: Tensor, spread: Tensor) -> Tensor:
    """The rows in the shape of what they meet: ``[B, N / B, C]`` beside ``[B, 1, C]``."""
    return x_NC if spread.dim() == 2 else x_NC.view(len(spread), -1, x_NC.shape[-1])


def _packed(x: Tensor) -> Tensor:
    """Back to ``[N, C]``."""
    return x if x.dim() == 2 else x.flatten(0, 1)


class Modulate:
    """LayerNorm without affine, then ``h * (1 + scale) + shift``; ``1 + scale`` is ``[B, C]``.

    The stream goes on as it came: autograd sums its two gradients.
    """

    def __init__(self, broadcast: Broadcast, precision: Precision) -> None:
        self.broadcast, self.precision = broadcast, precision

    def __call__(
        self, x_NC: Tensor, shift_BC: Tensor, scale_BC: Tensor, layout: PackedLayout
    ) -> tuple[Tensor, Tensor]:
        """The normed rows in the norm's dtype (the next Linear rounds), and the stream."""
        wide = x_NC.to(self.precision.norm)
        normed_NC = F.layer_norm(wide, wide.shape[-1:], eps=BLOCK_NORM_EPS)
        scale = self.broadcast(1 + scale_BC, layout)
        scaled = _beside(normed_NC, scale) * scale
        return _packed(scaled + self.broadcast(shift_BC, layout)), x_NC


class GateResidual:
    """``x + h * gate``, rounded after the product and after the sum."""

    def __init__(self, broadcast: Broadcast) -> None:
        self.broadcast = broadcast

    def __call__(self, x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, layout: PackedLayout) -> Tensor:
        """In the stream's dtype."""
        gate = self.broadcast(gate_BC, layout)
        return x_NC + _packed(_beside(h_NC, gate) * gate)


class QkNormRope:
    """RMS norm of each head of queries and keys, then the rotary positions where there are any.

    Queries, keys and values are views of the packed projection: autograd stacks their gradients.
    """

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def __call__(
        self,
        q_NHD: Tensor | None,
        packed: Tensor,
        gamma_q_HD: Tensor,
        gamma_k_HD: Tensor,
        phases_NP: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values in the dtype they came in, the values as they are."""
        *first, k, v = packed.unbind(1)
        q, k = self.rows(first[0] if q_NHD is None else q_NHD, k, gamma_q_HD, gamma_k_HD, phases_NP)
        return q, k, v

    def rows(
        self,
        q_NHD: Tensor,
        k_MHD: Tensor,
        gamma_q_HD: Tensor,
        gamma_k_HD: Tensor,
        phases_NP: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys that are taken apart already."""
        return self._one(q_NHD, gamma_q_HD, phases_NP), self._one(k_MHD, gamma_k_HD, phases_NP)

    def _one(self, x_NHD: Tensor, gamma_HD: Tensor, phases_NP: Tensor | None) -> Tensor:
        root = x_NHD.shape[-1] ** 0.5
        normed = F.normalize(x_NHD.to(self.precision.norm), dim=-1) * gamma_HD * root
        normed = normed.to(x_NHD.dtype)
        return normed if phases_NP is None else rotate(normed, phases_NP).to(x_NHD.dtype)


class SdpaAttention:
    """Scaled dot-product attention, not causal: one call for a dense batch, else one a sample."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def __call__(
        self,
        q_NHD: Tensor,
        k_MHD: Tensor,
        v_MHD: Tensor,
        queries: PackedLayout,
        keys: PackedLayout,
    ) -> Tensor:
        """``[N, H, D]`` in the stream's dtype."""
        if queries.dense and keys.dense:
            return self._dense(q_NHD, k_MHD, v_MHD, len(queries.lengths))
        dtype = self.precision.matmul
        q = q_NHD.to(dtype).transpose(0, 1)[None].split_with_sizes(queries.lengths, 2)
        k = k_MHD.to(dtype).transpose(0, 1)[None].split_with_sizes(keys.lengths, 2)
        v = v_MHD.to(dtype).transpose(0, 1)[None].split_with_sizes(keys.lengths, 2)
        parts = [F.scaled_dot_product_attention(*one) for one in zip(q, k, v, strict=True)]
        return torch.cat(parts, dim=2)[0].transpose(0, 1).to(self.precision.stream)

    def _dense(self, q_NHD: Tensor, k_MHD: Tensor, v_MHD: Tensor, samples: int) -> Tensor:
        """On CUDA by the flash kernels (FlashAttention-2), as published, whatever PyTorch prefers.

        The other fused backends are a lever's business, and fp32 has no flash kernel on CUDA.
        """
        rows = (x.to(self.precision.matmul) for x in (q_NHD, k_MHD, v_MHD))
        q, k, v = (x.reshape(samples, -1, *x.shape[1:]).transpose(1, 2) for x in rows)
        flash = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if flash else contextlib.nullcontext():
            out_BHND = F.scaled_dot_product_attention(q, k, v)
        return out_BHND.transpose(1, 2).flatten(0, 1).to(self.precision.stream)


class VarlenAttention:
    """torch's variable-length flash attention over the packed rows (CUDA, bf16), not causal."""

    def __init__(self, cu_seqlens: Callable[[PackedLayout], Tensor]) -> None:
        self.cu_seqlens = cu_seqlens

    def __call__(
        self,
        q_NHD: Tensor,
        k_MHD: Tensor,
        v_MHD: Tensor,
        queries: PackedLayout,
        keys: PackedLayout,
    ) -> Tensor:
        """``[N, H, D]``."""
        from torch.nn.attention.varlen import varlen_attn

        out_NHD = varlen_attn(
            q_NHD.contiguous(),
            k_MHD.contiguous(),
            v_MHD.contiguous(),
            self.cu_seqlens(queries),
            self.cu_seqlens(keys),
            queries.longest,
            keys.longest,
        )
        assert isinstance(out_NHD, Tensor)
        return out_NHD


class MlpHidden:
    """The MLP's first Linear, then GELU in its tanh form."""

    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    def __call__(self, x_NC: Tensor, weight_FC: Tensor, bias_F: Tensor) -> Tensor:
        """``[N, mlp]`` in the stream's dtype."""
        return F.gelu(self.linear(x_NC, weight_FC, bias_F), approximate="tanh")


class Mlp:
    """Hidden layer, then the second Linear.

    Attributes:
        precision: the dtypes of the products, for what takes its place.
    """

    def __init__(self, hidden: Hidden, linear: Linear, precision: Precision) -> None:
        self.hidden, self.linear, self.precision = hidden, linear, precision

    def __call__(
        self,
        x_NC: Tensor,
        up_FC: Tensor,
        up_bias_F: Tensor,
        down_CF: Tensor,
        down_bias_C: Tensor,
    ) -> Tensor:
        """``[N, C]`` in the stream's dtype."""
        return self.linear(self.hidden(x_NC, up_FC, up_bias_F), down_CF, down_bias_C)


class AffineNorm:
    """LayerNorm over the channels with weight and bias; the stream goes on as it came."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def __call__(self, x_NC: Tensor, weight_C: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
        """The normed rows in the norm's dtype (the next Linear rounds), and the stream."""
        wide = x_NC.to(self.precision.norm)
        return F.layer_norm(wide, wide.shape[-1:], weight_C, bias_C, eps=BLOCK_NORM_EPS), x_NC


class ResidualNorm:
    """A branch added to the stream, then the norm of the sum: the sites of both, one by one.

    A branch without a gate is added as it is. Shift and scale are a modulation's rows ``[B, C]``,
    or the bias and the weight ``[C]`` of an affine norm.
    """

    def __init__(
        self,
        gate_residual: Callable[[Tensor, Tensor, Tensor, PackedLayout], Tensor],
        modulate: Callable[[Tensor, Tensor, Tensor, PackedLayout], Normed],
        affine_norm: Callable[[Tensor, Tensor, Tensor], Normed],
    ) -> None:
        self.gate_residual, self.modulate = gate_residual, modulate
        self.affine_norm = affine_norm

    def __call__(
        self,
        x_NC: Tensor,
        h_NC: Tensor,
        gate_BC: Tensor | None,
        shift: Tensor,
        scale: Tensor,
        layout: PackedLayout,
    ) -> Normed:
        """The normed rows in the norm's dtype (the next Linear rounds), and the sum."""
        sum_NC = self._sum(x_NC, h_NC, gate_BC, layout)
        if scale.dim() == 1:
            return self.affine_norm(sum_NC, scale, shift)
        return self.modulate(sum_NC, shift, scale, layout)

    def _sum(
        self, x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor | None, layout: PackedLayout
    ) -> Tensor:
        if gate_BC is None:
            return x_NC + h_NC
        return self.gate_residual(x_NC, h_NC, gate_BC, layout)


def cu_seqlens(layout: PackedLayout) -> Tensor:
    """The row offsets as upstream makes them at every attention call: on the host, then copied."""
    return torch.tensor(layout.offsets, dtype=torch.int32).to(layout.batch_map.device)


def micro_batches(samples: Sequence[S], size: int) -> list[Sequence[S]]:
    """A step's samples in their order, ``size`` at a time."""
    return [samples[first : first + size] for first in range(0, len(samples), size)]
