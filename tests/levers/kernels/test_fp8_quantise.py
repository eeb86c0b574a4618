"""Quantising to 8 bits and the 8-bit Linear: plain PyTorch, and the Triton kernels interpreted."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor

from levers.kernels import fp8_linear
from levers.kernels.fp8_linear import (
    E4M3,
    E5M2,
    Fp8Product,
    limit_of,
    padded,
    product,
    quantise_torch,
    takes,
)
from levers.kernels.fp8_linear_cases import plain

KERNEL = "levers.kernels.fp8_linear_triton"


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def relative(found: Tensor, truth: Tensor) -> float:
    found, truth = found.detach().double(), truth.detach().double()
    return float((found - truth).norm() / truth.norm())


@pytest.fixture
def interpreted() -> ModuleType:
    """The kernels' module under Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("the kernels run on the device here (tests/gpu)")
    return importlib.import_module(KERNEL)


@pytest.mark.parametrize(("dtype", "error"), [(E4M3, 0.03), (E5M2, 0.06)])
def test_rounding_loses_what_the_mantissa_cannot_hold(dtype: torch.dtype, error: float) -> None:
    x = normal(300, 48)
    found = quantise_torch(x, dtype, turn=False)
    assert found.turned is None
    assert 0.7 * error < relative(found.values.float() * found.scale, x) < error
    assert float(found.values.float().abs().max()) == limit_of(dtype)


def test_the_transpose_is_padded_with_zeros_and_equal_otherwise() -> None:
    found = quantise_torch(normal(21, 32), E4M3, turn=True)
    assert found.turned is not None
    assert found.turned.shape == (32, 32)
    assert torch.equal(found.turned.float()[:, :21], found.values.float().t())
    assert not found.turned.float()[:, 21:].any()
    assert [padded(rows) for rows in (1, 16, 17)] == [16, 16, 32]


def test_zeros_stay_zeros_and_nothing_finite_is_lost_to_a_nan() -> None:
    assert not quantise_torch(torch.zeros(4, 16), E4M3, turn=False).values.float().any()
    x = normal(8, 16)
    wild = x.clone()
    wild[0, 0], wild[7, 3] = torch.nan, -torch.inf
    found = quantise_torch(wild, E4M3, turn=False)
    back = found.values.float() * found.scale
    assert torch.equal(~torch.isfinite(back), ~torch.isfinite(wild))
    keep = torch.isfinite(wild)
    assert relative(back[keep], x[keep]) < 0.04


@pytest.mark.parametrize(("dtype", "equal"), [(torch.float16, 1.0), (E4M3, 0.9), (E5M2, 0.8)])
@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (300, 48), (130, 272)])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
def test_the_kernels_give_what_plain_pytorch_gives(
    interpreted: ModuleType,
    dtype: torch.dtype,
    equal: float,
    rows: int,
    columns: int,
    source: torch.dtype,
) -> None:
    x = normal(rows, columns, dtype=source)
    found = interpreted.quantise_triton(x, dtype, turn=True, sums=True)
    same = quantise_torch(x, dtype, turn=True, sums=True)
    assert float(found.scale) == pytest.approx(float(same.scale), rel=1e-6)
    torch.testing.assert_close(found.sums, same.sums, rtol=1e-5, atol=1e-4)
    assert found.turned.shape == (columns, padded(rows))
    assert torch.equal(found.turned.float()[:, :rows], found.values.float().t())
    assert not found.turned.float()[:, rows:].any()
    # Triton's interpreter loses the carry where a mantissa of 8 bits rounds up to the next power of
    # two, so that every eighth or sixteenth value may be half of what it should be.
    gap = (found.values.float() - same.values.float()).abs() / same.values.float().abs()
    assert float((gap <= torch.finfo(torch.float16).eps).float().mean()) >= equal - 0.1 * (
        rows == 1
    )
    assert float(gap.max()) <= (1e-3 if dtype == torch.float16 else 0.5)


def test_the_kernels_read_rows_with_any_stride(interpreted: ModuleType) -> None:
    wide = normal(20, 96)
    for x in (wide[:, 32:64], wide.t()[:32].t()):
        found = interpreted.quantise_triton(x, E4M3, turn=False, sums=False)
        assert found.turned is None
        assert found.sums is None
        assert relative(found.values.float() * found.scale, x) < 0.06


def test_the_kernels_keep_nan_out_of_the_scale_and_in_the_values(interpreted: ModuleType) -> None:
    x = normal(40, 32)
    x[3, 5], x[39, 31] = torch.nan, torch.inf
    # In 16 bits: the interpreter's conversion to 8 bits knows no NaN, the device's does.
    found = interpreted.quantise_triton(x, torch.float16, turn=True, sums=False)
    same = quantise_torch(x, torch.float16, turn=True)
    assert torch.equal(~torch.isfinite(found.values), ~torch.isfinite(x))
    assert torch.equal(~torch.isfinite(found.turned), ~torch.isfinite(same.turned))
    assert float(found.scale) == pytest.approx(float(same.scale))


def test_the_product_of_8_bit_values_is_exact_up_to_fp32_sums() -> None:
    a = quantise_torch(normal(7, 48), E4M3, turn=False)
    b = quantise_torch(normal(16, 48, seed=4), E4M3, turn=False)
    bias = normal(16, seed=5)
    found = product(a.values, a.scale, b.values, b.scale, torch.float32, bias)
    truth = a.values.double() @ b.values.double().t() * (a.scale.double() * b.scale.double())
    torch.testing.assert_close(found.double(), truth + bias.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("gradients", "limit"), [(E4M3, 0.045), (E5M2, 0.07)])
def test_output_and_gradients_are_off_by_the_formats_rounding(
    gradients: torch.dtype, limit: float
) -> None:
    x, w, b = (normal(*size).requires_grad_() for size in ((203, 64), (96, 64), (96,)))
    dy = normal(203, 96, dtype=torch.bfloat16, seed=9)
    out = Fp8Product(plain, gradients)(x, w, b)
    assert out.dtype == torch.bfloat16
    assert out.grad_fn is not None
    assert out.grad_fn.name() == "Fp8LinearBackward"
    found = torch.autograd.grad(out, (x, w, b), dy)
    wide = dy.double()
    truths = (wide @ w.double(), wide.t() @ x.double(), wide.sum(0))
    assert relative(out, x.double() @ w.double().t() + b.double()) < 0.045
    for one, truth, most in zip(found, truths, (limit, limit, 1e-6), strict=True):
        assert one.dtype == torch.float32
        assert relative(one, truth) < most
    assert relative(found[1], truths[1]) > 0.5 * limit


def test_what_needs_no_gradient_keeps_no_transpose_and_gets_none() -> None:
    x, w = normal(5, 32), normal(16, 32).requires_grad_()
    out = Fp8Product(plain, E4M3)(x, w, None)
    saved = out.grad_fn.saved_tensors  # type: ignore[union-attr]
    assert saved[0] is not None
    assert saved[2] is None
    torch.autograd.backward(out.float().sum())
    assert x.grad is None
    assert w.grad is not None


def test_more_dimensions_are_rows() -> None:
    x, w, b = normal(2, 3, 32), normal(16, 32), normal(16)
    out = Fp8Product(plain, E4M3)(x, w, b)
    assert out.shape == (2, 3, 16)
    assert torch.equal(out.flatten(0, 1), Fp8Product(plain, E4M3)(x.flatten(0, 1), w, b))


def test_a_linear_without_an_8_bit_form_goes_to_the_callable_that_was_found() -> None:
    seen: list[Tensor] = []

    def found(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append(weight)
        return plain(x, weight, bias)

    launch = Fp8Product(found, E4M3)
    launch(normal(4, 24), normal(16, 24), None)
    assert len(seen) == 1
    launch(normal(4, 32), normal(16, 32), None)
    assert len(seen) == 1


def test_small_sides_are_not_worth_it_on_cuda() -> None:
    class OnCuda:
        device = torch.device("cuda")

    small, large = torch.empty(1024, 1008), torch.empty(1024, 1024)
    assert not takes(OnCuda(), small)  # type: ignore[arg-type]
    assert takes(OnCuda(), large)  # type: ignore[arg-type]
    assert takes(torch.empty(1), small)


def test_a_device_without_8_bit_tensor_cores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnCuda:
        device = torch.device("cuda")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(Exception, match="compute capability"):
        fp8_linear.refuse(OnCuda())  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    fp8_linear.refuse(OnCuda())  # type: ignore[arg-type]
