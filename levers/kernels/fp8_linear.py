"""A Linear whose three matrix products multiply 8-bit floats; weights stay as they are kept.

Shapes: N rows, C inputs, F outputs; P is N padded to a multiple of 16.

Each operand gets one scale, taken from its own largest finite value just before its use. A product
of 8-bit floats wants its left operand by rows and its right one by columns, both along the summed
dimension, so every operand is needed twice: ``x [N, C]`` for the forward and ``x.T [C, P]`` for the
weight's gradient, and so on. The quantiser writes both from one read. What is kept for the backward
is ``x.T`` and ``weight.T``, one byte an element where the original keeps two.

Formats: E4M3 (4 exponent, 3 mantissa bits, at most 448) for inputs and weights, E4M3 or E5M2 (at
most 57344) for gradients. Bytes moved for an operand of n bf16 elements: 2n to find the largest, 2n
+ n + n to quantise.

On CUDA the products are ``torch._scaled_mm``; elsewhere the same 8-bit values are multiplied in
fp32, which is what the tensor cores compute up to the order of sums.

Sources: Micikevicius et al. 2022, FP8 Formats for Deep Learning; PyTorch ``aten/src/ATen/native/
cuda/ScaledBlas.cpp`` (layouts, multiples of 16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levers.errors import BadParameter

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
GRADIENTS: dict[str, torch.dtype] = {"e4m3": E4M3, "e5m2": E5M2}
"""Format of the gradients by setting."""

STEP = 16
"""What ``_scaled_mm`` wants the summed and the right operand's dimensions to be multiples of."""

LEAST_SIDE = 1024
"""Smallest side of a weight worth it on CUDA. For N rows and sides s the three products save about
3 N s^2 FLOP's time at the bf16 rate, and quantising input and gradient moves 12 N s bytes: at 790
TFLOP/s and 4.3 TB/s the two are equal at s = 735.
"""

LEAST_CAPABILITY = (8, 9)
"""The first compute capability whose tensor cores take 8-bit floats."""

OUT = torch.bfloat16
"""What a Linear returns: 8-bit products are no more accurate than that."""

FP32_MAX = torch.finfo(torch.float32).max
LEAST_SCALE = torch.finfo(torch.float32).tiny
"""Its reciprocal is finite, so that an operand of zeros quantises to zeros."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """One operand in 8 bits: ``values x scale`` is what was quantised.

    Attributes:
        values: ``[N, C]``.
        turned: the transpose ``[C, P]``, zeros from column N on; None where it was not asked for.
        scale: fp32, one element, on the device.
        sums: the columns' sums of what was quantised, fp32 [C]; None where not asked for.
    """

    values: Tensor
    turned: Tensor | None
    scale: Tensor
    sums: Tensor | None = None


def padded(rows: int) -> int:
    """Rows, rounded up to what a summed dimension must be a multiple of."""
    return -(-rows // STEP) * STEP


def limit_of(dtype: torch.dtype) -> float:
    """The largest finite value of a format."""
    return float(torch.finfo(dtype).max)


def quantise_torch(x: Tensor, dtype: torch.dtype, *, turn: bool, sums: bool = False) -> Quantised:
    """Quantise with plain PyTorch; what is not finite becomes NaN, and the scale is without it."""
    wide = x.float()
    finite = wide.abs() <= FP32_MAX
    limit = limit_of(dtype)
    scale = (wide.abs().where(finite, 0.0).amax() / limit).clamp_min(LEAST_SCALE)
    scaled = (wide * (1.0 / scale)).clamp(-limit, limit).where(finite, torch.nan)
    values = scaled.to(dtype)
    turned = _turned(values) if turn else None
    return Quantised(values, turned, scale, wide.sum(0) if sums else None)


def _turned(values: Tensor) -> Tensor:
    """The padded transpose."""
    rows, columns = values.shape
    turned = torch.zeros((columns, padded(rows)), dtype=values.dtype, device=values.device)
    turned[:, :rows] = values.t()
    return turned


def quantise(x: Tensor, dtype: torch.dtype, *, turn: bool, sums: bool = False) -> Quantised:
    """Quantise ``[N, C]`` on its device: our Triton kernels on CUDA, plain PyTorch elsewhere."""
    if x.device.type == "cuda":
        from levers.kernels.fp8_linear_triton import quantise_triton

        return quantise_triton(x, dtype, turn=turn, sums=sums)
    return quantise_torch(x, dtype, turn=turn, sums=sums)


def product(
    left: Tensor,
    left_scale: Tensor,
    right: Tensor,
    right_scale: Tensor,
    out: torch.dtype,
    bias: Tensor | None = None,
    *,
    fast: bool = False,
) -> Tensor:
    """``left [M, K] @ right [N, K].T`` of 8-bit values, scaled back: ``[M, N]``.

    ``fast`` leaves the sums in the tensor cores' shorter accumulator over all of K.
    """
    if left.device.type == "cuda":
        return torch._scaled_mm(
            left,
            right.t(),
            scale_a=left_scale,
            scale_b=right_scale,
            bias=None if bias is None else bias.to(OUT),
            out_dtype=out,
            use_fast_accum=fast,
        )
    wide = (left.float() @ right.float().t()) * (left_scale * right_scale)
    return (wide if bias is None else wide + bias.float()).to(out)


class Fp8Linear(torch.autograd.Function):
    """``x @ weight.T + bias`` with 8-bit products both ways."""

    @staticmethod
    def forward(
        ctx: Any, x_NC: Tensor, weight_FC: Tensor, bias_F: Tensor | None, gradients: torch.dtype
    ) -> Tensor:
        """``[N, F]`` in bf16; keeps transposes in 8 bits for what needs a gradient."""
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        x = quantise(x_NC, E4M3, turn=needs_weight)
        weight = quantise(weight_FC, E4M3, turn=needs_x)
        ctx.gradients, ctx.rows = gradients, x_NC.shape[0]
        ctx.dtypes = x_NC.dtype, weight_FC.dtype, None if bias_F is None else bias_F.dtype
        ctx.save_for_backward(x.turned, x.scale, weight.turned, weight.scale)
        return product(x.values, x.scale, weight.values, weight.scale, OUT, bias_F, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias in their dtypes."""
        x_turned, x_scale, weight_turned, weight_scale = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        dy = quantise(grads[0], ctx.gradients, turn=needs_weight, sums=needs_bias)
        dx = dweight = dbias = None
        if needs_x:
            dx = product(dy.values, dy.scale, weight_turned, weight_scale, x_dtype)
        if needs_weight and dy.turned is not None:
            dweight = product(dy.turned, dy.scale, x_turned, x_scale, weight_dtype)
        if needs_bias and dy.sums is not None:
            dbias = dy.sums.to(bias_dtype)
        return dx, dweight, dbias, None


def takes(x: Tensor, weight_FC: Tensor) -> bool:
    """Whether a Linear's products have an 8-bit form that is worth it on this device."""
    outputs, inputs = weight_FC.shape
    if inputs % STEP or outputs % STEP:
        return False
    return x.device.type != "cuda" or min(inputs, outputs) >= LEAST_SIDE


def refuse(x: Tensor) -> None:
    """Raise on a device whose tensor cores take no 8-bit floats.

    Raises:
        BadParameter: CUDA below compute capability 8.9.
    """
    if x.device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(x.device)
    if capability < LEAST_CAPABILITY:
        raise BadParameter(
            f"8-bit products on a device of compute capability {capability}",
            cure=f"use one of {LEAST_CAPABILITY} or later",
        )


class Fp8Product:
    """What a lever puts in the site of the Linears.

    Linears without an 8-bit form, or too small for one, stay with the callable that was found; the
    witness counts both.
    """

    def __init__(
        self, found: Callable[[Tensor, Tensor, Tensor | None], Tensor], gradients: torch.dtype
    ) -> None:
        self.found, self.gradients = found, gradients

    def __call__(self, x: Tensor, weight_FC: Tensor, bias_F: Tensor | None) -> Tensor:
        """``x @ weight.T + bias`` over the last dimension."""
        if not takes(x, weight_FC):
            return self.found(x, weight_FC, bias_F)
        refuse(x)
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        out: Tensor = Fp8Linear.apply(rows, weight_FC, bias_F, self.gradients)  # type: ignore[no-untyped-call]
        return out if x.dim() == 2 else out.view(*x.shape[:-1], -1)
