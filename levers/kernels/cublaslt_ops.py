"""The products as operators of PyTorch's registry, so that a compiled region takes them in unseen.

A compiler needs a shape for each result and looks no further. Outside of one an operator that is
written in Python costs the dispatcher's round trip and gives nothing, so that the product is called
itself. They are registered without PyTorch's wrapper for such functions, which loads the compiler
(seconds) at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from levers.kernels import cublaslt_products as products


def _linear(x_NC: Tensor, weight_FC: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    del bias
    return x_NC.new_empty((x_NC.shape[0], weight_FC.shape[0]), dtype=dtype)


def _linear_gelu(
    x_NC: Tensor, weight_FC: Tensor, bias_F: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    shape = (x_NC.shape[0], bias_F.shape[0])
    return x_NC.new_empty(shape, dtype=dtype), weight_FC.new_empty(shape, dtype=dtype)


def _input_grad(grad_NF: Tensor, weight_FC: Tensor, dtype: torch.dtype) -> Tensor:
    return grad_NF.new_empty((grad_NF.shape[0], weight_FC.shape[1]), dtype=dtype)


def _gelu_grad(
    grad_NC: Tensor, weight_CF: Tensor, h_NF: Tensor, sums: bool
) -> tuple[Tensor, Tensor]:
    by_library = products.on_library(grad_NC, *weight_CF.shape)
    dtype = h_NF.dtype if by_library else products.wide(h_NF)
    return torch.empty_like(h_NF), h_NF.new_empty(h_NF.shape[1] if sums else 0, dtype=dtype)


def _weight_grad(grad_NF: Tensor, x_NC: Tensor, dtype: torch.dtype) -> Tensor:
    return grad_NF.new_empty((grad_NF.shape[1], x_NC.shape[1]), dtype=dtype)


def _both_grads(grad_NF: Tensor, x_NC: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _weight_grad(grad_NF, x_NC, dtype), grad_NF.new_empty(grad_NF.shape[1], dtype=dtype)


LIBRARY = torch.library.Library("levergate", "FRAGMENT")  # type: ignore[no-untyped-call]


def _operator(name: str, schema: str, shapes: Callable[..., Any]) -> Any:
    """Register the product of that name; ``shapes`` gives empty results.

    Returns:
        What calls the operator inside a compiled region, and the product itself elsewhere.
    """
    library: Any = LIBRARY
    direct = getattr(products, name)
    library.define(f"{name}{schema}")
    library.impl(name, direct, "CompositeExplicitAutograd")
    torch.library.register_fake(f"levergate::{name}", shapes, lib=library)
    operator = getattr(torch.ops.levergate, name).default

    def call(*arguments: Any) -> Any:
        return (operator if torch.compiler.is_compiling() else direct)(*arguments)

    return call


linear = _operator(
    "linear", "(Tensor x, Tensor weight, Tensor? bias, ScalarType dtype) -> Tensor", _linear
)
linear_gelu = _operator(
    "linear_gelu",
    "(Tensor x, Tensor weight, Tensor bias, ScalarType dtype) -> (Tensor, Tensor)",
    _linear_gelu,
)
input_grad = _operator(
    "input_grad", "(Tensor grad, Tensor weight, ScalarType dtype) -> Tensor", _input_grad
)
gelu_grad = _operator(
    "gelu_grad",
    "(Tensor grad, Tensor weight, Tensor h, bool sums) -> (Tensor, Tensor)",
    _gelu_grad,
)
weight_grad = _operator(
    "weight_grad", "(Tensor grad, Tensor x, ScalarType dtype) -> Tensor", _weight_grad
)
both_grads = _operator(
    "both_grads", "(Tensor grad, Tensor x, ScalarType dtype) -> (Tensor, Tensor)", _both_grads
)
