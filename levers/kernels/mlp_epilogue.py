"""The whole MLP as two products each way, with GELU in the products' epilogues.

Shapes: N rows, C channels, F hidden width.

Forward: ``a, h = linear_gelu(x, W1, b1)`` and ``y = linear(a, W2, b2)``; the first product writes
both the activation and the pre-activation, and nothing reads either again. Backward: ``dh =
(dy @ W2) * gelu'(h)`` is one product, whose epilogue reads the pre-activation and can sum dh over
the rows, which is the first bias's gradient, before it is rounded. Then ``dx = dh @ W1`` and the
gradients of both weights.

Kept for the backward: the rows, the pre-activation, the activation and both weights, all in the
multiplying dtype; what the separate Linears and the activation keep.

Source: Hendrycks and Gimpel 2016, arXiv:1606.08415 (GELU).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.kernels.cublaslt_linear import dtypes_of, parameter_grads, precision_of
from levers.kernels.cublaslt_ops import (
    gelu_grad,
    input_grad,
    linear,
    linear_gelu,
)
from levers.kernels.linear_grads import cast, rounded_two


@dataclass(frozen=True, slots=True)
class Fusion:
    """What the epilogues take in beside GELU's slope, which is always there.

    Attributes:
        active: the activation, in the forward; else a kernel of its own reads the pre-activation.
        sums: the first bias's gradient, in the dtype of the rows; else a kernel of its own sums the
            pre-activation's gradient in fp32.
        beside: both biases' gradients, in the products of the weights' gradients.
    """

    active: bool = True
    sums: bool = False
    beside: bool = False


def gelu(h_NF: Tensor) -> Tensor:
    """GELU in its tanh form: our kernel on CUDA, plain PyTorch elsewhere."""
    if h_NF.is_cuda:
        from levers.kernels.mlp_hidden_triton import gelu_triton

        return gelu_triton(h_NF)
    return F.gelu(h_NF, approximate="tanh")


def hidden(
    x_NC: Tensor, up_FC: Tensor, bias_F: Tensor | None, stream: torch.dtype, active: bool
) -> tuple[Tensor, Tensor]:
    """Activation and pre-activation, ``[N, F]`` each, in ``stream``; ``active`` as in a fusion."""
    if active:
        out, h = linear_gelu(x_NC, up_FC, bias_F, stream)
        return out, h
    h = linear(x_NC, up_FC, bias_F, stream)
    return gelu(h), h


class EpilogueMlp(torch.autograd.Function):
    """``gelu(x @ W1.T + b1) @ W2.T + b2``."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NC: Tensor,
        up_FC: Tensor,
        up_bias_F: Tensor,
        down_CF: Tensor,
        down_bias_C: Tensor,
        matmul: torch.dtype,
        stream: torch.dtype,
        in_forward: bool,
        sums: bool,
        beside: bool,
    ) -> Tensor:
        """``[N, C]`` in ``stream``, multiplied in ``matmul``; the hidden layer is in ``stream``."""
        needs_x, needs_up, needs_up_bias, needs_down, _ = ctx.needs_input_grad[:5]
        inside = needs_x or needs_up or needs_up_bias
        x = cast(x_NC, matmul)
        parameters = (up_FC, up_bias_F, down_CF, down_bias_C)
        up, up_bias, down, down_bias = rounded_two(*parameters, matmul)
        active, h = hidden(x, up, up_bias, stream, in_forward)
        active = cast(active, matmul)
        ctx.matmul, ctx.sums, ctx.beside = matmul, sums, beside
        ctx.dtypes = (
            x_NC.dtype, up_FC.dtype, up_bias_F.dtype, down_CF.dtype, down_bias_C.dtype,
        )  # fmt: skip
        ctx.save_for_backward(
            x if needs_up else None,
            up if needs_x else None,
            h if inside else None,
            active if needs_down else None,
            down if inside else None,
        )
        out: Tensor = linear(active, down, down_bias, stream)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the rows and of the four parameters, in their dtypes."""
        x, up, h, active, down = ctx.saved_tensors
        _, _, needs_up_bias, _, needs_down_bias = ctx.needs_input_grad[:5]
        x_dtype, up_dtype, up_bias_dtype, down_dtype, down_bias_dtype = ctx.dtypes
        grad = cast(grads[0], ctx.matmul)
        dx = dup = dup_bias = None
        if h is not None:
            dh, sums = gelu_grad(grad, down, h, needs_up_bias and ctx.sums)
            dh, summed = cast(dh, ctx.matmul), needs_up_bias and not ctx.sums
            dx = None if up is None else input_grad(dh, up, x_dtype)
            dtypes = up_dtype, up_bias_dtype if summed else None
            dup, dup_bias = parameter_grads(dh, x, dtypes, beside=ctx.beside)
            if needs_up_bias and ctx.sums:
                dup_bias = cast(sums, up_bias_dtype)
        dtypes = down_dtype, down_bias_dtype if needs_down_bias else None
        ddown, ddown_bias = parameter_grads(grad, active, dtypes, beside=ctx.beside)
        return dx, dup, dup_bias, ddown, ddown_bias, None, None, None, None, None


class EpilogueMlps:
    """What the lever puts in the site of the MLP, over the callable that was found there.

    Args:
        found: the MLP as it was; its ``precision`` names the dtypes where autocast does not.
        fusion: what the epilogues take in.
    """

    def __init__(self, found: Callable[..., Tensor], fusion: Fusion) -> None:
        self.precision, self.fusion = precision_of(getattr(found, "precision", None)), fusion

    def __call__(
        self,
        x_NC: Tensor,
        up_FC: Tensor,
        up_bias_F: Tensor,
        down_CF: Tensor,
        down_bias_C: Tensor,
    ) -> Tensor:
        """``[N, C]`` in the stream's dtype."""
        parameters = (up_FC, up_bias_F, down_CF, down_bias_C)
        fusion = self.fusion
        how = (*dtypes_of(x_NC, self.precision), fusion.active, fusion.sums, fusion.beside)
        out: Tensor = EpilogueMlp.apply(x_NC, *parameters, *how)  # type: ignore[no-untyped-call]
        return out
