"""A Linear whose backward writes the parameters' gradients in their own dtype, rounding nothing.

Shapes: N rows, C inputs, F outputs.

The forward is the original's: rows, weight and bias are rounded to the dtype that the product
multiplies in, and the product adds the bias. Kept for the backward are the rounded rows and the
rounded weight, each only where a gradient needs it.

In the backward ``dx = dy @ weight`` and ``dweight = dy.T @ x`` are products of values in the
multiplying dtype with fp32 sums, and ``dbias`` is the fp32 sum of dy's columns. Each is stored in
the dtype of what it belongs to: for fp32 parameters the sums themselves, where the original rounds
them to bf16 and widens them again. On CUDA that is the product's own output dtype
(``torch.mm(..., out_dtype=torch.float32)``); elsewhere the operands are widened, which gives the
same products and sums.

Source: PyTorch ``aten/src/ATen/autocast_mode.cpp`` (what autocast casts, and that the cast's
gradient is a cast back).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.errors import BadParameter
from levers.kernels.segment_sum import accumulate_dtype

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Precision(Protocol):
    """What a Linear multiplies in and returns where autocast does not say so."""

    @property
    def matmul(self) -> torch.dtype:
        """Of the operands."""

    @property
    def stream(self) -> torch.dtype:
        """Of the result."""


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, which costs microseconds also where there is nothing to do."""
    return x if x.dtype == dtype else x.to(dtype)


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """``left @ right`` with sums no narrower than fp32, rounded once to ``dtype``."""
    wide = torch.promote_types(left.dtype, dtype)
    if wide == left.dtype:
        return torch.mm(left, right).to(dtype)
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=wide).to(dtype)
    return torch.mm(left.to(wide), right.to(wide)).to(dtype)


def column_sums(rows_NF: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of the rows, ``[F]``, in fp32 (fp64 for fp64 rows) and rounded once to ``dtype``."""
    if rows_NF.is_cuda:
        from levers.kernels.linear_grads_triton import column_sums_triton

        return column_sums_triton(rows_NF, dtype)
    return rows_NF.sum(0, dtype=accumulate_dtype(rows_NF.dtype)).to(dtype)


def rounded(
    weight_FC: Tensor, bias_F: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias in ``dtype``: themselves if they are, on CUDA by one launch if neither is."""
    if bias_F is None:
        return cast(weight_FC, dtype), None
    if weight_FC.is_cuda and dtype not in (weight_FC.dtype, bias_F.dtype):
        from levers.kernels.linear_grads_triton import rounded_triton

        return rounded_triton(weight_FC, bias_F, dtype)
    return cast(weight_FC, dtype), cast(bias_F, dtype)


def rounded_two(
    weight: Tensor, bias: Tensor, other: Tensor, other_bias: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Two Linears' weights and biases in ``dtype``, on CUDA by one launch if none of them is."""
    given = (weight, bias, other, other_bias)
    if weight.is_cuda and dtype not in [one.dtype for one in given]:
        from levers.kernels.linear_grads_triton import rounded_four_triton

        return rounded_four_triton(*given, dtype)
    return *rounded(weight, bias, dtype), *rounded(other, other_bias, dtype)


class FusedLinear(torch.autograd.Function):
    """``x @ weight.T + bias``; its backward casts no gradient of a parameter."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NC: Tensor,
        weight_FC: Tensor,
        bias_F: Tensor | None,
        matmul: torch.dtype,
        stream: torch.dtype,
    ) -> Tensor:
        """``[N, F]`` in ``stream``, multiplied in ``matmul``."""
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        x, (weight, bias) = cast(x_NC, matmul), rounded(weight_FC, bias_F, matmul)
        ctx.matmul = matmul
        ctx.dtypes = x_NC.dtype, weight_FC.dtype, None if bias_F is None else bias_F.dtype
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return cast(F.linear(x, weight, bias), stream)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias in their dtypes."""
        x, weight = ctx.saved_tensors
        needs_bias = ctx.needs_input_grad[2]
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        grad = cast(grads[0], ctx.matmul)
        dx = None if weight is None else product(grad, weight, x_dtype)
        dweight = None if x is None else product(grad.t(), x, weight_dtype)
        dbias = column_sums(grad, bias_dtype) if needs_bias else None
        return dx, dweight, dbias, None, None


class FusedLinearGrads:
    """What the lever puts in the site of the Linears, over the callable that was found there.

    The dtypes are autocast's; without autocast they are those of the object whose method was found.
    """

    def __init__(self, found: Linear) -> None:
        owner = getattr(found, "__self__", None)
        known = all(isinstance(getattr(owner, name, None), torch.dtype) for name in NAMED)
        self.precision: Precision | None = owner if known else None

    def __call__(self, x: Tensor, weight_FC: Tensor, bias_F: Tensor | None) -> Tensor:
        """``x @ weight.T + bias`` over the last dimension."""
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        out: Tensor = FusedLinear.apply(rows, weight_FC, bias_F, *self.dtypes(x))  # type: ignore[no-untyped-call]
        return out if x.dim() == 2 else out.view(*x.shape[:-1], -1)

    def dtypes(self, x: Tensor) -> tuple[torch.dtype, torch.dtype]:
        """What this call multiplies in, and what it returns.

        Raises:
            BadParameter: neither autocast nor the callable that was found says so.
        """
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            return dtype, dtype
        if self.precision is None:
            raise BadParameter(
                "fused_linear_grads without autocast over a Linear that names no dtypes",
                cure="run the forward under autocast, or put a bound method in the site whose "
                f"object has the dtypes {' and '.join(NAMED)}",
            )
        return self.precision.matmul, self.precision.stream


NAMED = ("matmul", "stream")
"""The attributes of :class:`Precision`."""
