"""The products of a Linear and of an MLP, row-major: by cuBLASLt on CUDA, elsewhere plain PyTorch.

Shapes: N rows, C inputs, F outputs (of the MLP's first Linear: hidden width).

Six products, each one call of the library. Column-major, as it sees them (m x n x k, the operands
that are transposed, the epilogue):

=============  ==========================  =====================  ============================
operation      result                      problem                epilogue
=============  ==========================  =====================  ============================
linear         ``x @ w.T + b``             F x N x C, A turned    BIAS
linear_gelu    ``gelu(h)``, ``h``          F x N x C, A turned    GELU_AUX_BIAS
input_grad     ``dy @ w``                  C x N x F              DEFAULT
gelu_grad      ``(dy @ w) * gelu'(h)``     F x N x C              DGELU_BGRAD or DGELU
weight_grad    ``dy.T @ x``                C x F x N, B turned    DEFAULT
both_grads     ``dy.T @ x``, its sums      C x F x N, B turned    BGRADB
=============  ==========================  =====================  ============================

Sides that are no multiple of 8 are PyTorch's on CUDA too. Sums are fp32 and each result is rounded
once. GELU is the tanh form. The bias's gradients that DGELU_BGRAD and BGRADB write are summed in
fp32 and have the dtype of the gradient beside them.

Source: NVIDIA, cuBLAS library documentation, ``cublasLtEpilogue_t`` (GELU's form in its notes).
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.kernels.cublaslt import DEVICES, KINDS, PLANS, operand
from levers.kernels.cublaslt_abi import Epilogue
from levers.kernels.cublaslt_plan import Operands, Problem
from levers.kernels.linear_grads import cast, column_sums, product
from levers.kernels.segment_sum import accumulate_dtype

SIDE_STEP = 8
"""What a side must be a multiple of: 16 bytes in 16 bits, and what the activation's input needs."""


def on_library(rows: Tensor, side: int, other: int) -> bool:
    """Whether the library computes a product of these rows and sides; no rows are no product."""
    if not rows.is_cuda or side % SIDE_STEP or other % SIDE_STEP:
        return False
    return rows.numel() > 0


@functools.lru_cache(maxsize=PLANS)
def _problem(
    sides: tuple[int, int, int],
    turns: tuple[bool, bool],
    dtypes: tuple[torch.dtype, torch.dtype],
    epilogue: Epilogue,
    rows: Literal["n", "k"],
) -> Problem:
    """The problem of these sides m, n and k: the same object each time, which is found faster."""
    operands, result = dtypes
    return Problem(*sides, *turns, KINDS[operands], KINDS[result], epilogue, rows)


def linear_problem(
    x_NC: Tensor, weight_FC: Tensor, dtype: torch.dtype, epilogue: Epilogue
) -> Problem:
    """``x @ weight.T``, with an epilogue over the outputs."""
    outputs, inputs = weight_FC.shape
    sides = (outputs, x_NC.shape[0], inputs)
    return _problem(sides, (True, False), (x_NC.dtype, dtype), epilogue, "n")


def input_problem(
    grad_NF: Tensor, weight_FC: Tensor, dtype: torch.dtype, epilogue: Epilogue
) -> Problem:
    """``grad @ weight``, with an epilogue over the inputs."""
    outputs, inputs = weight_FC.shape
    sides = (inputs, grad_NF.shape[0], outputs)
    return _problem(sides, (False, False), (grad_NF.dtype, dtype), epilogue, "n")


def weight_problem(
    grad_NF: Tensor, x_NC: Tensor, dtype: torch.dtype, epilogue: Epilogue = Epilogue.DEFAULT
) -> Problem:
    """``grad.T @ x``."""
    rows, outputs = grad_NF.shape
    sides = (x_NC.shape[1], outputs, rows)
    return _problem(sides, (False, True), (grad_NF.dtype, dtype), epilogue, "k")


def run(problem: Problem, operands: Operands) -> None:
    """On the device of the result."""
    DEVICES.at(operands.out.get_device()).run(problem, operands)


def wide(x: Tensor) -> torch.dtype:
    """fp32, or fp64 for fp64 rows."""
    return accumulate_dtype(x.dtype)


def linear_lt(x_NC: Tensor, weight_FC: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """:func:`linear` by the library."""
    x, weight = operand(x_NC), operand(weight_FC)
    out = x.new_empty((x.shape[0], weight.shape[0]), dtype=dtype)
    epilogue = Epilogue.DEFAULT if bias is None else Epilogue.BIAS
    bias = None if bias is None else operand(cast(bias, dtype))
    run(linear_problem(x, weight, dtype, epilogue), Operands(weight, x, out, bias))
    return out


def linear_gelu_lt(
    x_NC: Tensor, weight_FC: Tensor, bias_F: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """:func:`linear_gelu` by the library."""
    x, weight, bias = operand(x_NC), operand(weight_FC), operand(cast(bias_F, dtype))
    out = x.new_empty((x.shape[0], weight.shape[0]), dtype=dtype)
    h = torch.empty_like(out)
    problem = linear_problem(x, weight, dtype, Epilogue.GELU_AUX_BIAS)
    run(problem, Operands(weight, x, out, bias, h))
    return out, h


def input_grad_lt(grad_NF: Tensor, weight_FC: Tensor, dtype: torch.dtype) -> Tensor:
    """:func:`input_grad` by the library."""
    grad, weight = operand(grad_NF), operand(weight_FC)
    out = grad.new_empty((grad.shape[0], weight.shape[1]), dtype=dtype)
    run(input_problem(grad, weight, dtype, Epilogue.DEFAULT), Operands(weight, grad, out))
    return out


def gelu_grad_lt(
    grad_NC: Tensor, weight_CF: Tensor, h_NF: Tensor, sums: bool
) -> tuple[Tensor, Tensor]:
    """:func:`gelu_grad` by the library."""
    grad, weight, h = operand(grad_NC), operand(weight_CF), operand(h_NF)
    out = torch.empty_like(h)
    bias = h.new_empty(h.shape[1] if sums else 0)
    epilogue = Epilogue.DGELU_BGRAD if sums else Epilogue.DGELU
    problem = input_problem(grad, weight, h.dtype, epilogue)
    run(problem, Operands(weight, grad, out, bias if sums else None, h))
    return out, bias


def weight_grad_lt(grad_NF: Tensor, x_NC: Tensor, dtype: torch.dtype) -> Tensor:
    """:func:`weight_grad` by the library."""
    grad, x = operand(grad_NF), operand(x_NC)
    out = grad.new_empty((grad.shape[1], x.shape[1]), dtype=dtype)
    run(weight_problem(grad, x, dtype), Operands(x, grad, out))
    return out


def both_grads_lt(grad_NF: Tensor, x_NC: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """:func:`both_grads` by the library."""
    grad, x = operand(grad_NF), operand(x_NC)
    out = grad.new_empty((grad.shape[1], x.shape[1]), dtype=dtype)
    sums = grad.new_empty(grad.shape[1], dtype=dtype)
    run(weight_problem(grad, x, dtype, Epilogue.BGRADB), Operands(x, grad, out, sums))
    return out, sums


def _sum_of_products(x_NC: Tensor, weight_FC: Tensor, bias: Tensor | None) -> Tensor:
    out = product(x_NC, weight_FC.t(), wide(x_NC))
    return out if bias is None else out + bias


def linear(x_NC: Tensor, weight_FC: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``x @ weight.T + bias``, rounded once to ``dtype``: ``[N, F]``."""
    if on_library(x_NC, *weight_FC.shape):
        return linear_lt(x_NC, weight_FC, bias, dtype)
    with torch.autocast(x_NC.device.type, enabled=False):
        return _sum_of_products(x_NC, weight_FC, bias).to(dtype)


def linear_gelu(
    x_NC: Tensor, weight_FC: Tensor, bias_F: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """GELU of ``h = x @ weight.T + bias``, and h, ``[N, F]`` each, in ``dtype``."""
    if on_library(x_NC, *weight_FC.shape):
        return linear_gelu_lt(x_NC, weight_FC, bias_F, dtype)
    with torch.autocast(x_NC.device.type, enabled=False):
        h = _sum_of_products(x_NC, weight_FC, bias_F)
        return F.gelu(h, approximate="tanh").to(dtype), h.to(dtype)


def input_grad(grad_NF: Tensor, weight_FC: Tensor, dtype: torch.dtype) -> Tensor:
    """``grad @ weight``, rounded once to ``dtype``: ``[N, C]``."""
    if on_library(grad_NF, *weight_FC.shape):
        return input_grad_lt(grad_NF, weight_FC, dtype)
    return product(grad_NF, weight_FC, dtype)


def gelu_grad(
    grad_NC: Tensor, weight_CF: Tensor, h_NF: Tensor, sums: bool
) -> tuple[Tensor, Tensor]:
    """``(grad @ weight) * gelu'(h)``, ``[N, F]``, and with ``sums`` its column sums, ``[F]``.

    The first in the dtype of h. The second is empty without ``sums``; its dtype is that of h where
    the library writes it, else it stays wide.
    """
    if on_library(grad_NC, *weight_CF.shape):
        return gelu_grad_lt(grad_NC, weight_CF, h_NF, sums)
    dtype = wide(h_NF)
    grad_NF = product(grad_NC, weight_CF, dtype)
    dh_NF = torch.ops.aten.gelu_backward(grad_NF, h_NF.to(dtype), approximate="tanh")
    dbias = dh_NF.sum(0) if sums else dh_NF.new_empty(0)
    return dh_NF.to(h_NF.dtype), dbias


def weight_grad(grad_NF: Tensor, x_NC: Tensor, dtype: torch.dtype) -> Tensor:
    """``grad.T @ x``, rounded once to ``dtype``: ``[F, C]``."""
    if on_library(grad_NF, grad_NF.shape[1], x_NC.shape[1]):
        return weight_grad_lt(grad_NF, x_NC, dtype)
    return product(grad_NF.t(), x_NC, dtype)


def both_grads(grad_NF: Tensor, x_NC: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``grad.T @ x``, ``[F, C]``, and the sums of grad's columns, ``[F]``, rounded once each."""
    if on_library(grad_NF, grad_NF.shape[1], x_NC.shape[1]):
        return both_grads_lt(grad_NF, x_NC, dtype)
    return product(grad_NF.t(), x_NC, dtype), column_sums(grad_NF, dtype)
