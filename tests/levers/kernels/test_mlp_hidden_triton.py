"""The activation's kernels under Triton's interpreter, on the CPU, against fp64."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels run on the device here (tests/gpu)"
)

SHAPES = [(1, 1), (7, 40), (8, 256), (129, 260), (300, 33)]
# the interpreter rounds fp32 to bf16 towards zero: one unit instead of half a unit
TOLERANCE = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


@pytest.fixture
def kernels() -> ModuleType:
    return importlib.import_module("levers.kernels.mlp_hidden_triton")


def drawn(shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pre-activations and gradients."""
    draw = torch.Generator().manual_seed(sum(shape))
    h, grad = (torch.randn(*shape, generator=draw) for _ in "hg")
    return (3 * h).to(dtype), (grad + 0.5).to(dtype)


def true_gradient(h: Tensor, grad: Tensor) -> Tensor:
    wide = h.double().requires_grad_()
    return torch.autograd.grad(F.gelu(wide, approximate="tanh"), wide, grad.double())[0]


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_equal_fp64_up_to_rounding(
    kernels: ModuleType, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    h, grad = drawn(shape, dtype)
    out = kernels.gelu_triton(h)
    assert out.dtype == dtype
    assert relative(out, F.gelu(h.double(), approximate="tanh")) <= TOLERANCE[dtype]
    dh, dbias = kernels.gelu_backward_triton(h, grad)
    truth = true_gradient(h, grad)
    assert (dh.dtype, dbias.dtype) == (dtype, torch.float32)
    assert relative(dh, truth) <= TOLERANCE[dtype]
    # summed before rounding: as near as fp32 whatever the dtype of the rows
    assert relative(dbias, truth.sum(0)) <= TOLERANCE[torch.float32]


def test_gradients_may_have_any_stride(kernels: ModuleType) -> None:
    h, _ = drawn((20, 12), torch.float32)
    wide = torch.randn(20, 40, generator=torch.Generator().manual_seed(0))
    for grad in (wide[:, 5:17], wide[:, :12].t().contiguous().t()):
        dh, dbias = kernels.gelu_backward_triton(h, grad)
        truth = true_gradient(h, grad)
        assert relative(dh, truth) < 1e-6
        assert relative(dbias, truth.sum(0)) < 1e-6


def test_both_tails_are_flat_and_a_nan_stays_one(kernels: ModuleType) -> None:
    h = torch.tensor([[-1e4, -40.0, -1e-39, 40.0, 1e4, float("nan")]])
    out, ones = kernels.gelu_triton(h), torch.ones_like(h)
    assert out[0, :5].tolist() == pytest.approx([0.0, 0.0, 0.0, 40.0, 1e4])
    assert out[0, 5].isnan()
    dh, _ = kernels.gelu_backward_triton(h, ones)
    assert dh[0, :5].tolist() == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])
    assert dh[0, 5].isnan()


def test_the_sums_repeat_bit_for_bit(kernels: ModuleType) -> None:
    h, grad = drawn((300, 40), torch.bfloat16)
    first, again = (kernels.gelu_backward_triton(h, grad)[1] for _ in "ab")
    assert torch.equal(first, again)
