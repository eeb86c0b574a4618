"""The fused affine norm: plain PyTorch, the Triton kernels interpreted, the autograd node."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from levers.kernels.affine_norm import affine_norm, affine_norm_to

KERNEL = "levers.kernels.row_norm_triton"
DTYPES = [torch.float32, torch.bfloat16]

# The interpreter rounds fp32 to bf16 towards zero; the device, held to half a unit, to nearest.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2.0**-6}


def tensors(rows: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Rows, fp32 weight and bias, and the gradients of the normed rows and of the stream."""
    draw = torch.Generator().manual_seed(rows)
    x, grad, beside = torch.randn(3, rows, channels, generator=draw).to(dtype)
    affine = 0.1 * torch.randn(2, channels, generator=draw)
    return x - 1, 1 + affine[0], affine[1], grad, beside


def truth(one: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Result and gradients of rows, weight and bias in fp64."""
    x, weight, bias = leaves = [t.double().requires_grad_() for t in one[:3]]
    result = F.layer_norm(x, x.shape[1:], weight, bias, eps=1e-6)
    grads = [t.double() for t in one[3:]]
    return result.detach(), *torch.autograd.grad((result, x), leaves, grads)


def check(found: tuple[Tensor, ...], one: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    expected = (dtype, dtype, torch.float32, torch.float32)
    for ours, true, kind in zip(found, truth(one), expected, strict=True):
        assert ours.dtype == kind
        tolerance = TOLERANCE[kind]
        torch.testing.assert_close(ours.double(), true, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("rows", [1, 31, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plain_form_is_the_norm(rows: int, dtype: torch.dtype) -> None:
    one = tensors(rows, 24, dtype)
    leaves = [t.detach().requires_grad_() for t in one[:3]]
    normed, on = affine_norm_to(*leaves, dtype)
    assert torch.equal(on, leaves[0])
    check((normed, *torch.autograd.grad((normed, on), leaves, one[3:])), one, dtype)


@pytest.mark.parametrize("rows", [1, 31, 32, 65])
@pytest.mark.parametrize("channels", [64, 90])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_are_the_norm(rows: int, channels: int, dtype: torch.dtype) -> None:
    one = tensors(rows, channels, dtype)
    check(launched(interpreted(), one, dtype), one, dtype)


def interpreted() -> ModuleType:
    """The kernel's module under Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("the kernel runs on the device here (tests/gpu)")
    return importlib.import_module(KERNEL)


def launched(kernel: ModuleType, one: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, weight, bias, grad, beside = one
    y, mean, rstd = kernel.forward_triton(
        x, weight[None], bias[None], None, eps=1e-6, plus_one=False, dtype=dtype
    )
    dx, dweight, dbias = kernel.backward_triton(
        grad, beside, x, mean, rstd, weight[None], None, plus_one=False, sums=True
    )
    return y, dx, dweight[0], dbias[0]


def test_gradcheck_holds_in_fp64() -> None:
    leaves = [t.double().detach().requires_grad_() for t in tensors(6, 5, torch.float32)[:3]]
    assert torch.autograd.gradcheck(affine_norm, leaves)


def test_a_frozen_weight_and_bias_get_no_gradient() -> None:
    x, weight, bias, *grads = tensors(6, 5, torch.float32)
    results = affine_norm(x.requires_grad_(), weight, bias)
    torch.autograd.backward(results, grads)
    assert weight.grad is None
    assert x.grad is not None


def test_it_rounds_to_what_the_next_linear_multiplies_in() -> None:
    x, weight, bias, *_ = tensors(6, 5, torch.bfloat16)
    assert affine_norm(x, weight, bias)[0].dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normed, on = affine_norm(x, weight, bias)
    assert normed.dtype == on.dtype == torch.bfloat16


def test_a_weight_and_a_bias_of_two_dtypes_are_refused() -> None:
    x, weight, bias, *_ = tensors(6, 5, torch.float32)
    with pytest.raises(TypeError, match="one dtype"):
        affine_norm(x, weight, bias.double())
