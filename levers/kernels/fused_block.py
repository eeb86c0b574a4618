"""One transformer block of a decode step in as few launches as its sites allow.

Shapes: N rows (1 to 32), C hidden size, H query heads, K KV heads, D head dimension, E projected
width, I intermediate size. The launches of a block, attention apart:

1. residual add, RMS norm and the packed projection of q, k, v;
2. head norms, rotary positions, and the new keys and values stored in the cache;
3. the output projection;
4. residual add, RMS norm, gate and up projections and SwiGLU;
5. the down projection.

The residual stream is carried as ``(x, delta)`` with ``delta`` not yet added, so that the two adds
of a block stand before its two normed products. From :data:`LARGEST_NORMED_ROWS` rows on the add
and norm have a launch of their own. Matrices that are no tensors take part by their own
``fused_linear`` or, without one, by their ``linear``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from levers.kernels.add_norm import AddNorm
from levers.kernels.decode_qk_rope import Rope, qk_norm_rope_plain
from levers.kernels.gemv import FusedMatrix, Norm, Scratch, fused_linear
from levers.kernels.gemv_tilings import LARGEST_NORMED_ROWS, LARGEST_ROWS, Tiling, tiling


class Matrix(Protocol):
    """A stored matrix that is no tensor."""

    def linear(self, x_NC: Tensor) -> Tensor:
        """``x @ matrix.T``."""


class Block(Protocol):
    """One block as the decoder hands it over."""

    @property
    def index(self) -> int:
        """Which block it is, for the cache."""

    @property
    def config(self) -> Any:
        """The model's: ``rms_norm_eps`` and ``head_dim``."""

    @property
    def weights(self) -> Any:
        """``input_norm_C qkv_EC qk_norms o_CE post_norm_C gate_up_JC down_CI``.

        The matrices are tensors or :class:`Matrix`; ``qk_norms`` are the head norms of queries and
        keys, or None.
        """

    @property
    def heads(self) -> tuple[int, int]:
        """Query heads and KV heads."""


@runtime_checkable
class StoringAttention(Protocol):
    """An attention whose cache can be written by someone else before it attends."""

    def places(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of the layer as rows ``[R, D]``; the row of each token and KV head."""

    def attend_stored(self, layer: int, q_NHD: Tensor) -> Tensor:
        """Attend to what the cache holds, the new tokens included."""


Run = Callable[..., tuple[Tensor, Tensor]]
Choose = Callable[..., Tiling]


class FusedBlock:
    """The callable of ``decode.block``: steps fused, longer runs of tokens handed on.

    ``early`` makes its products and the launch of the head norms programmatic dependent launches:
    each starts while the one before it ends, and asks for its first weights at once. ``choose``
    gives the tiling of each product.

    Attributes:
        ran: what the last call did.
    """

    def __init__(self, found: Run, choose: Choose = tiling, *, early: bool = False) -> None:
        self._found, self._choose = found, choose
        self._scratch, self._add_norm = Scratch(), AddNorm(early=early)
        self._early = early
        self.ran = ""

    def with_tilings(self, choose: Choose) -> FusedBlock:
        """The same in front of the same callable, with other tilings of its products."""
        return FusedBlock(self._found, choose, early=self._early)

    def __call__(
        self, parts: Block, x_NC: Tensor, delta_NC: Tensor | None, rope: Rope, attend: Any
    ) -> tuple[Tensor, Tensor]:
        """The stream ``x`` and the MLP's output, not yet added to it: ``[N, C]`` each."""
        count = x_NC.shape[0]
        if count > LARGEST_ROWS:
            self.ran = "handed on: a prompt"
            return self._found(parts, x_NC, delta_NC, rope, attend)
        layer, eps = parts.weights, parts.config.rms_norm_eps
        norm = Norm(layer.input_norm_C, eps, delta_NC)
        x_NC, packed_NE = self._normed(x_NC, norm, layer.qkv_EC, swiglu=False)
        attended_NE = self._attended(parts, packed_NE, rope, attend).reshape(count, -1)
        projected_NC = self._product(attended_NE, layer.o_CE, None, swiglu=False)
        norm = Norm(layer.post_norm_C, eps, projected_NC)
        x_NC, act_NI = self._normed(x_NC, norm, layer.gate_up_JC, swiglu=True)
        apart = count > LARGEST_NORMED_ROWS
        self.ran = f"fused_block, norms {'apart' if apart else 'in products'}"
        self.ran += ", early launches" if self._early else ""
        return x_NC, self._product(act_NI, layer.down_CI, None, swiglu=False)

    def _normed(
        self, x_NC: Tensor, norm: Norm, weight: Tensor | Matrix, *, swiglu: bool
    ) -> tuple[Tensor, Tensor]:
        """The stream with the addend, and the product of its norm."""
        if x_NC.shape[0] > LARGEST_NORMED_ROWS or not isinstance(weight, Tensor | FusedMatrix):
            x_NC, normed_NC = self._apart(x_NC, norm)
            return x_NC, self._product(normed_NC, weight, None, swiglu=swiglu)
        if norm.delta_NC is None:
            return x_NC, self._product(x_NC, weight, norm, swiglu=swiglu)
        sum_NC = torch.empty_like(x_NC)
        norm = Norm(norm.weight_C, norm.eps, norm.delta_NC, sum_NC)
        return sum_NC, self._product(x_NC, weight, norm, swiglu=swiglu)

    def _apart(self, x_NC: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """Add and norm in a launch of their own; before the first block there is no addend."""
        if norm.delta_NC is not None:
            return self._add_norm(x_NC, norm.delta_NC, norm.weight_C, norm.eps)
        return x_NC, torch.rms_norm(x_NC, (x_NC.shape[-1],), norm.weight_C, norm.eps)

    def _product(
        self, x_NC: Tensor, weight: Tensor | Matrix, norm: Norm | None, *, swiglu: bool
    ) -> Tensor:
        """The product with what can be fused to it."""
        if isinstance(weight, Tensor):
            outputs = weight.shape[0] // (2 if swiglu else 1)
            chosen = self._choose(
                *(x_NC.shape[0], outputs, x_NC.shape[1]), swiglu=swiglu, norm=norm is not None
            )
            return fused_linear(
                *(x_NC, weight, norm),
                swiglu=swiglu,
                scratch=self._scratch,
                tile=replace(chosen, early=self._early),
            )
        if isinstance(weight, FusedMatrix):
            return weight.fused_linear(x_NC, norm, swiglu)
        y_NE = weight.linear(x_NC)
        if not swiglu:
            return y_NE
        gate_NI, up_NI = y_NE.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate_NI) * up_NI

    def _attended(self, parts: Block, packed_NE: Tensor, rope: Rope, attend: Any) -> Tensor:
        """Head norms, positions, the cache's new rows, and attention."""
        packed_NPD = packed_NE.view(len(packed_NE), -1, parts.config.head_dim)
        norms, eps, heads = parts.weights.qk_norms, parts.config.rms_norm_eps, parts.heads
        run: Callable[..., Tensor] = attend
        if packed_NPD.device.type != "cuda":
            return run(parts.index, *qk_norm_rope_plain(packed_NPD, norms, rope, heads, eps))
        from levers.kernels.decode_qk_rope_triton import qk_norm_rope_triton

        one = partial(qk_norm_rope_triton, packed_NPD, norms, rope, heads, eps, early=self._early)
        if isinstance(attend, StoringAttention):
            q_NHD, _, _ = one(stored=attend.places(parts.index))
            return attend.attend_stored(parts.index, q_NHD)
        return run(parts.index, *one())
