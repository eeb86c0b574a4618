"""LayerNorm followed by a scale and a shift, with fp32 sums as the gradients of both.

Shapes: B samples, N packed rows, C channels. ``y = (x - mean) rstd factor + shift``, where the
factor and the shift are rows by sample and the factor is ``scale`` or ``1 + scale``.

With ``u = dy factor`` and ``n = (x - mean) rstd`` the gradients are
``dx = rstd (u - mean(u) - n mean(u n))``, ``dscale = sum(dy n)`` and ``dshift = sum(dy)`` over the
rows of a sample (Ba, Kiros and Hinton 2016; the gradient as in PyTorch's ``layer_norm_kernel``).
Everything is computed in fp32 and rounded once. Kept for the backward: the rows in their own dtype
and two fp32 values a row; ``n`` is computed again.

The rows are a residual stream, which goes on beside the norm. An operation returns the stream too,
so that its backward is given both gradients of the rows and adds them before that one rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levers.kernels.segment_sum import Segments, accumulate_dtype

EPS = 1e-6
"""Added to the variance (TRELLIS.2's blocks)."""


@dataclass(frozen=True, slots=True)
class RowNorm:
    """One operation: where the samples lie, and what the factor is.

    Attributes:
        segments: of the rows, or None where all rows are one sample.
        plus_one: the factor is ``1 + scale``, rounded to the scale's dtype as published.
    """

    segments: Segments | None
    plus_one: bool

    def forward(
        self, x_NC: Tensor, scale_BC: Tensor, shift_BC: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The rows in ``dtype``, their means and their reciprocal deviations, both ``[N]``."""
        if x_NC.is_cuda:
            from levers.kernels.row_norm_triton import forward_triton

            return forward_triton(
                x_NC,
                scale_BC,
                shift_BC,
                self._cu_seqlens(),
                eps=EPS,
                plus_one=self.plus_one,
                dtype=dtype,
            )
        return self._forward_plain(x_NC, scale_BC, shift_BC, dtype)

    def backward(
        self,
        grad_NC: Tensor | None,
        stream_NC: Tensor | None,
        saved: Sequence[Tensor],
        *,
        sums: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of rows, scale and shift; the last two only with ``sums``.

        Args:
            grad_NC: of the normed rows, or None where nothing used them.
            stream_NC: of the stream that goes on, in the rows' dtype, or None.
            saved: rows, means, reciprocal deviations and scale.
            sums: whether scale or shift is trained.
        """
        if grad_NC is None:
            return stream_NC, None, None
        x_NC, mean_N, rstd_N, scale_BC = saved
        if x_NC.is_cuda:
            from levers.kernels.row_norm_triton import backward_triton

            return backward_triton(
                grad_NC,
                stream_NC,
                x_NC,
                mean_N,
                rstd_N,
                scale_BC,
                self._cu_seqlens(),
                plus_one=self.plus_one,
                sums=sums,
            )
        return self._backward_plain(grad_NC, stream_NC, saved, sums=sums)

    def _cu_seqlens(self) -> Tensor | None:
        return None if self.segments is None else self.segments.cu_seqlens

    def _factor(self, scale_BC: Tensor) -> Tensor:
        return (1 + scale_BC if self.plus_one else scale_BC).to(accumulate_dtype(scale_BC.dtype))

    def _samples(self, rows: int) -> Iterator[tuple[int, slice]]:
        """Each sample that has rows, and which."""
        return samples_of((0, rows) if self.segments is None else self.segments.offsets)

    def _forward_plain(
        self, x_NC: Tensor, scale_BC: Tensor, shift_BC: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One LayerNorm a sample, with the sample's rows of factor and shift as its affine part."""
        wide = accumulate_dtype(x_NC.dtype)
        factor_BC, shift_BC = self._factor(scale_BC).to(wide), shift_BC.to(wide)
        y_NC = torch.empty_like(x_NC, dtype=dtype)
        mean_N1, rstd_N1 = x_NC.new_empty((2, len(x_NC), 1), dtype=wide)
        for b, rows in self._samples(len(x_NC)):
            y_NC[rows], mean_N1[rows], rstd_N1[rows] = torch.native_layer_norm(
                x_NC[rows].to(wide), x_NC.shape[1:], factor_BC[b], shift_BC[b], EPS
            )
        return y_NC, mean_N1[:, 0], rstd_N1[:, 0]

    def _backward_plain(
        self, grad_NC: Tensor, stream_NC: Tensor | None, saved: Sequence[Tensor], *, sums: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The gradients of each sample's LayerNorm, which sum over its rows in fp32."""
        x_NC, mean_N, rstd_N, scale_BC = saved
        wide = mean_N.dtype
        factor_BC = self._factor(scale_BC).to(wide)
        dx_NC = torch.empty_like(x_NC)
        scale_sums, shift_sums = x_NC.new_zeros((2, *scale_BC.shape), dtype=wide)
        for b, rows in self._samples(len(x_NC)):
            dx, scale_sum, shift_sum = torch.ops.aten.native_layer_norm_backward(
                grad_NC[rows].to(wide),
                x_NC[rows].to(wide),
                x_NC.shape[1:],
                mean_N[rows, None],
                rstd_N[rows, None],
                factor_BC[b],
                factor_BC[b],
                (True, sums, sums),
            )
            dx_NC[rows] = dx if stream_NC is None else dx + stream_NC[rows].to(wide)
            if sums:
                scale_sums[b], shift_sums[b] = scale_sum, shift_sum
        if not sums:
            return dx_NC, None, None
        return dx_NC, scale_sums.to(scale_BC.dtype), shift_sums.to(scale_BC.dtype)


def expect_absent_gradients(ctx: Any) -> None:
    """Have the backward given None for the gradient of a result that nothing used.

    Without this it is given zeros, which a kernel would read; a compiled graph has no other way.
    """
    if not torch.compiler.is_compiling():
        ctx.set_materialize_grads(False)


def samples_of(offsets: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """The number of each sample that has rows, and which rows."""
    for b, (start, stop) in enumerate(itertools.pairwise(offsets)):
        if stop > start:
            yield b, slice(start, stop)


def next_dtype(x: Tensor) -> torch.dtype:
    """The dtype that the next Linear multiplies in: autocast's, without autocast fp32 (or fp64).

    The original leaves LayerNorm and modulation in fp32 and the Linear rounds; a fused kernel that
    rounds to this dtype rounds once, at the same place.
    """
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return accumulate_dtype(x.dtype)
