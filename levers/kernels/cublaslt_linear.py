"""A Linear whose three products run by algorithms that were measured on its shapes.

Shapes: N rows, C inputs, F outputs.

The arithmetic is that of :mod:`.linear_grads`: rows, weight and bias are rounded to the dtype that
is multiplied, sums are fp32, and the gradients of the parameters are written in the parameters'
dtype. Only who chooses the algorithm of a product differs. A weight's gradient may instead be
written in the multiplying dtype and then widened, which is what PyTorch's autocast does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from levers.errors import BadParameter
from levers.kernels.cublaslt_ops import both_grads, input_grad, linear, weight_grad
from levers.kernels.linear_grads import Precision, cast, column_sums, rounded

NAMED = ("matmul", "stream")
"""The attributes of a precision."""


def precision_of(owner: object) -> Precision | None:
    """The object, if it names the dtypes that a Linear multiplies in and returns."""
    known = all(isinstance(getattr(owner, name, None), torch.dtype) for name in NAMED)
    return owner if known else None  # type: ignore[return-value]


def dtypes_of(x: Tensor, precision: Precision | None) -> tuple[torch.dtype, torch.dtype]:
    """What a call multiplies in and returns: autocast's dtype, or what the precision names.

    Raises:
        BadParameter: neither says so.
    """
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        return dtype, dtype
    if precision is None:
        raise BadParameter(
            "a cuBLASLt product without autocast over a callable that names no dtypes",
            cure="run the forward under autocast, or replace a callable whose object has the "
            f"dtypes {' and '.join(NAMED)}",
        )
    return precision.matmul, precision.stream


def parameter_grads(
    grad_NF: Tensor,
    x_NC: Tensor | None,
    dtypes: tuple[torch.dtype, torch.dtype | None],
    *,
    beside: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a weight and its bias in their dtypes; None for what needs none.

    With ``beside`` the product that makes the weight's also sums the bias's, where both have one
    dtype; else, and without, the column-sum kernel does.

    Args:
        grad_NF: the output's gradient.
        x_NC: the rows; None where the weight needs no gradient.
        dtypes: the weight's and the bias's, None where the bias needs no gradient.
        beside: as above.
    """
    dtype, bias_dtype = dtypes
    if x_NC is not None and beside and bias_dtype == dtype:
        dweight, dbias = both_grads(grad_NF, x_NC, dtype)
        return dweight, dbias
    return (
        None if x_NC is None else weight_grad(grad_NF, x_NC, dtype),
        None if bias_dtype is None else column_sums(grad_NF, bias_dtype),
    )


class TunedLinear(torch.autograd.Function):
    """``x @ weight.T + bias`` with a chosen algorithm in each direction."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NC: Tensor,
        weight_FC: Tensor,
        bias_F: Tensor | None,
        matmul: torch.dtype,
        stream: torch.dtype,
        narrow: bool,
        beside: bool,
    ) -> Tensor:
        """``[N, F]`` in ``stream``, multiplied in ``matmul``."""
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        x, (weight, bias) = cast(x_NC, matmul), rounded(weight_FC, bias_F, matmul)
        ctx.matmul, ctx.narrow, ctx.beside = matmul, narrow, beside
        ctx.dtypes = x_NC.dtype, weight_FC.dtype, None if bias_F is None else bias_F.dtype
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        out: Tensor = linear(x, weight, bias, stream)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias in their dtypes."""
        x, weight = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        grad = cast(grads[0], ctx.matmul)
        dx = None if weight is None else input_grad(grad, weight, x_dtype)
        dtypes = (
            ctx.matmul if ctx.narrow else weight_dtype,
            bias_dtype if ctx.needs_input_grad[2] else None,
        )
        dweight, dbias = parameter_grads(grad, x, dtypes, beside=ctx.beside)
        dweight = None if dweight is None else cast(dweight, weight_dtype)
        return dx, dweight, dbias, None, None, None, None


class TunedLinears:
    """What the lever puts in the site of the Linears, over the callable that was found there.

    Args:
        found: a bound method whose object names the dtypes where autocast does not.
        narrow: whether a weight's gradient is written in the multiplying dtype, then widened.
        beside: whether the weight's product also sums the bias's gradient.
    """

    def __init__(
        self, found: Callable[..., Tensor], *, narrow: bool = False, beside: bool = False
    ) -> None:
        self.precision = precision_of(getattr(found, "__self__", None))
        self.narrow, self.beside = narrow, beside

    def __call__(self, x: Tensor, weight_FC: Tensor, bias_F: Tensor | None) -> Tensor:
        """``x @ weight.T + bias`` over the last dimension."""
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        how = (*dtypes_of(x, self.precision), self.narrow, self.beside)
        out: Tensor = TunedLinear.apply(rows, weight_FC, bias_F, *how)  # type: ignore[no-untyped-call]
        return out if x.dim() == 2 else out.view(*x.shape[:-1], -1)
