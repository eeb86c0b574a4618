"""The MLP's hidden layer: its Linear, then GELU whose backward also sums the bias's gradient.

Shapes: N rows, C channels, F hidden width.

The Linear keeps its bias in the product's epilogue, in the forward alone. The activation's node
takes the bias as a second input: its backward reads the gradient and the pre-activation once, and
writes the pre-activation's gradient and the column sums of it, in fp32 and before rounding. The
node keeps the pre-activation in its own dtype and nothing else; the activation is kept by the next
Linear, which needs it.

``gelu(h) = h s`` with ``s = sigmoid(2 a (h + b h^3))``, ``a = sqrt(2 / pi)``, ``b = 0.044715``; its
derivative is ``s + h s (1 - s) 2 a (1 + 3 b h^2)``. This is the tanh form, as ``1 + tanh(u) = 2
sigmoid(2 u)``, without the cancellation at its negative tail.

Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64 rows."""
    return torch.promote_types(dtype, torch.float32)


def backward_torch(h_NF: Tensor, grad_NF: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the pre-activation (in its dtype) and of the bias (wide) in plain PyTorch."""
    wide = wide_dtype(h_NF.dtype)
    dh_NF = torch.ops.aten.gelu_backward(grad_NF.to(wide), h_NF.to(wide), approximate="tanh")
    return dh_NF.to(h_NF.dtype), dh_NF.sum(0)


class GeluAndBiasGrad(torch.autograd.Function):
    """GELU of a pre-activation that already holds the bias; its backward serves both."""

    @staticmethod
    def forward(ctx: Any, h_NF: Tensor, bias_F: Tensor) -> Tensor:
        """``gelu(h)`` in its tanh form; the bias is not read."""
        ctx.save_for_backward(h_NF)
        ctx.dtype = bias_F.dtype
        if h_NF.is_cuda:
            from levers.kernels.mlp_hidden_triton import gelu_triton

            return gelu_triton(h_NF)
        return F.gelu(h_NF, approximate="tanh")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Of the pre-activation in its dtype, of the bias in the bias's."""
        (h_NF,) = ctx.saved_tensors
        if h_NF.is_cuda:
            from levers.kernels.mlp_hidden_triton import gelu_backward_triton

            dh_NF, dbias_F = gelu_backward_triton(h_NF, grads[0])
        else:
            dh_NF, dbias_F = backward_torch(h_NF, grads[0])
        return dh_NF, dbias_F.to(ctx.dtype)


class FusedMlpHidden:
    """The hidden layer over a Linear of the caller's choice."""

    def __init__(self, linear: Linear = F.linear) -> None:
        self.linear = linear

    def __call__(self, x_NC: Tensor, weight_FC: Tensor, bias_F: Tensor) -> Tensor:
        """``gelu(x @ weight.T + bias)``, ``[N, F]``, in the dtype that the Linear returns."""
        h_NF = self.linear(x_NC, weight_FC, bias_F.detach())
        out_NF: Tensor = GeluAndBiasGrad.apply(h_NF, bias_F)  # type: ignore[no-untyped-call]
        return out_NF


def over_linear_of(found: Callable[..., Tensor]) -> FusedMlpHidden:
    """The fused layer over the Linear of the layer that it replaces; PyTorch's if it names none."""
    return FusedMlpHidden(getattr(found, "linear", F.linear))
