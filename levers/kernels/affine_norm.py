"""LayerNorm with weight and bias, rounded once to the dtype of the next Linear.

Shapes: N rows, C channels. The backward gives the rows' gradient, with that of the stream beside
the norm added in fp32, and sums the weight's and the bias's in fp32 in the same pass over the rows.
See :mod:`.row_norm`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from levers.kernels.row_norm import RowNorm, expect_absent_gradients, next_dtype

NORM = RowNorm(None, plus_one=False)


class FusedAffineNorm(torch.autograd.Function):
    """The norm; weight and bias are the scale and the shift of a batch of one sample."""

    @staticmethod
    def forward(
        ctx: Any, x_NC: Tensor, weight_C: Tensor, bias_C: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """``[N, C]`` in ``dtype``, and the rows themselves to go on with."""
        expect_absent_gradients(ctx)
        y_NC, mean_N, rstd_N = NORM.forward(x_NC, weight_C.unsqueeze(0), bias_C.unsqueeze(0), dtype)
        ctx.save_for_backward(x_NC, mean_N, rstd_N, weight_C)
        return y_NC, x_NC.view_as(x_NC)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Of rows, weight and bias."""
        x_NC, mean_N, rstd_N, weight_C = ctx.saved_tensors
        saved, (grad_NC, stream_NC) = (x_NC, mean_N, rstd_N, weight_C.unsqueeze(0)), grads
        trained = any(ctx.needs_input_grad[1:3])
        dx, dweight, dbias = NORM.backward(grad_NC, stream_NC, saved, sums=trained)
        if dweight is None or dbias is None:
            return dx, None, None, None
        return dx, dweight[0], dbias[0], None


def affine_norm_to(
    x_NC: Tensor, weight_C: Tensor, bias_C: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The norm in a dtype of choice, and the stream to go on with, ``[N, C]`` each.

    Raises:
        TypeError: weight and bias differ in dtype; their gradients are summed together.
    """
    if weight_C.dtype != bias_C.dtype:
        raise TypeError(f"weight is {weight_C.dtype} and bias {bias_C.dtype}; use one dtype")
    y_NC, on_NC = FusedAffineNorm.apply(x_NC, weight_C, bias_C, dtype)  # type: ignore[no-untyped-call]
    return y_NC, on_NC


def affine_norm(x_NC: Tensor, weight_C: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
    """The norm in the dtype of the next Linear, and the stream, ``[N, C]`` each."""
    return affine_norm_to(x_NC, weight_C, bias_C, next_dtype(x_NC))
