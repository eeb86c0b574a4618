"""The original path of each site: the operations as published, which the levers replace.

Shapes: B samples, N packed tokens, M packed condition tokens, C channels, H heads, D head dim, P
pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.precision import Precision
from experiments.workloads.flow.rope import rotate

BLOCK_NORM_EPS = 1e-6

Broadcast = Callable[[Tensor, PackedLayout], Tensor]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def broadcast(mod_BC: Tensor, layout: PackedLayout) -> Tensor:
    """Each sample's row for each of its tokens, ``[N, C]``, by advanced indexing.

    Its backward is ``index_put_(accumulate=True)`` in the gradient's dtype, which walks a sample's
    rows one after the other (on CUDA one warp for 128 channels of a sample) and rounds after each.
    """
    return mod_BC[layout.batch_map]


class Modulate:
    """LayerNorm without affine, then ``h * (1 + scale) + shift``; ``1 + scale`` is ``[B, C]``."""

    def __init__(self, broadcast: Broadcast, precision: Precision) -> None:
        self.broadcast, self.precision = broadcast, precision

    def __call__(
        self, x_NC: Tensor, shift_BC: Tensor, scale_BC: Tensor, layout: PackedLayout
    ) -> Tensor:
        """In the norm's dtype: the next Linear rounds."""
        wide = x_NC.to(self.precision.norm)
        normed_NC = F.layer_norm(wide, wide.shape[-1:], eps=BLOCK_NORM_EPS)
        scaled_NC = normed_NC * self.broadcast(1 + scale_BC, layout)
        return scaled_NC + self.broadcast(shift_BC, layout)


class GateResidual:
    """``x + h * gate``, rounded after the product and after the sum."""

    def __init__(self, broadcast: Broadcast) -> None:
        self.broadcast = broadcast

    def __call__(self, x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, layout: PackedLayout) -> Tensor:
        """In the stream's dtype."""
        return x_NC + h_NC * self.broadcast(gate_BC, layout)


class QkNormRope:
    """RMS norm of each head of queries and keys, then the rotary positions where there are any."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def __call__(
        self,
        q_NHD: Tensor,
        k_MHD: Tensor,
        gamma_q_HD: Tensor,
        gamma_k_HD: Tensor,
        phases_NP: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys in the dtype they came in."""
        return self._one(q_NHD, gamma_q_HD, phases_NP), self._one(k_MHD, gamma_k_HD, phases_NP)

    def _one(self, x_NHD: Tensor, gamma_HD: Tensor, phases_NP: Tensor | None) -> Tensor:
        root = x_NHD.shape[-1] ** 0.5
        normed = F.normalize(x_NHD.to(self.precision.norm), dim=-1) * gamma_HD * root
        normed = normed.to(x_NHD.dtype)
        return normed if phases_NP is None else rotate(normed, phases_NP).to(x_NHD.dtype)


class SdpaAttention:
    """Scaled dot-product attention, one sample after the other, not causal."""

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
        dtype = self.precision.matmul
        q = q_NHD.to(dtype).transpose(0, 1)[None].split_with_sizes(queries.lengths, 2)
        k = k_MHD.to(dtype).transpose(0, 1)[None].split_with_sizes(keys.lengths, 2)
        v = v_MHD.to(dtype).transpose(0, 1)[None].split_with_sizes(keys.lengths, 2)
        parts = [F.scaled_dot_product_attention(*one) for one in zip(q, k, v, strict=True)]
        return torch.cat(parts, dim=2)[0].transpose(0, 1).to(self.precision.stream)


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


class AffineNorm:
    """LayerNorm over the channels with weight and bias."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def __call__(self, x_NC: Tensor, weight_C: Tensor, bias_C: Tensor) -> Tensor:
        """In the norm's dtype: the next Linear rounds."""
        wide = x_NC.to(self.precision.norm)
        return F.layer_norm(wide, wide.shape[-1:], weight_C, bias_C, eps=BLOCK_NORM_EPS)


def cu_seqlens(layout: PackedLayout) -> Tensor:
    """The row offsets as upstream makes them at every attention call: on the host, then copied."""
    return torch.tensor(layout.offsets, dtype=torch.int32).to(layout.batch_map.device)
