"""LayerNorm without affine, then ``h * (1 + scale) + shift`` with rows by sample, as one operation.

Shapes: B samples, N packed rows, C channels. The roundings are the original's: ``1 + scale`` in the
modulation's dtype on ``[B, C]``, all else in fp32, and one rounding to the dtype of the next
Linear. The gradients of shift and scale are fp32 sums over a sample's rows, rounded once, where the
original rounds each row's term to bf16 and the running sum after each row. The gradient of the
stream beside the norm is added in fp32, where the original rounds the norm's before that sum. See
:mod:`.row_norm`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from levers.kernels.row_norm import RowNorm, expect_absent_gradients, next_dtype
from levers.kernels.segment_sum import Segments


class FusedModulate(torch.autograd.Function):
    """The modulated norm; its backward writes the rows' gradient and sums the modulation's."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NC: Tensor,
        shift_BC: Tensor,
        scale_BC: Tensor,
        segments: Segments,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """``[N, C]`` in ``dtype``, and the rows themselves to go on with."""
        expect_absent_gradients(ctx)
        norm = ctx.norm = RowNorm(segments, plus_one=True)
        y_NC, mean_N, rstd_N = norm.forward(x_NC, scale_BC, shift_BC, dtype)
        ctx.save_for_backward(x_NC, mean_N, rstd_N, scale_BC)
        return y_NC, x_NC.view_as(x_NC)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Of rows, shift and scale."""
        (grad_NC, stream_NC), saved = grads, ctx.saved_tensors
        trained = any(ctx.needs_input_grad[1:3])
        dx, dscale, dshift = ctx.norm.backward(grad_NC, stream_NC, saved, sums=trained)
        return dx, dshift, dscale, None, None


def modulate_to(
    x_NC: Tensor, shift_BC: Tensor, scale_BC: Tensor, segments: Segments, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The modulated norm in a dtype of choice, and the stream to go on with, ``[N, C]`` each.

    Raises:
        TypeError: shift and scale differ in dtype; their gradients are summed together.
    """
    if shift_BC.dtype != scale_BC.dtype:
        raise TypeError(f"shift is {shift_BC.dtype} and scale {scale_BC.dtype}; use one dtype")
    y_NC, on_NC = FusedModulate.apply(x_NC, shift_BC, scale_BC, segments, dtype)  # type: ignore[no-untyped-call]
    return y_NC, on_NC


def modulate(
    x_NC: Tensor, shift_BC: Tensor, scale_BC: Tensor, segments: Segments
) -> tuple[Tensor, Tensor]:
    """The modulated norm in the dtype of the next Linear, and the stream, ``[N, C]`` each."""
    return modulate_to(x_NC, shift_BC, scale_BC, segments, next_dtype(x_NC))
