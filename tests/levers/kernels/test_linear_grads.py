"""The Linear's arithmetic on the CPU, and its kernels under Triton's interpreter."""

from __future__ import annotations

import importlib
from collections import Counter
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from levers.errors import BadParameter
from levers.kernels.linear_grads import (
    FusedLinear,
    FusedLinearGrads,
    column_sums,
    product,
    rounded_two,
)
from levers.kernels.linear_grads_cases import CPU_PRODUCTS, Products

BF16 = torch.bfloat16


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaves(dtype: torch.dtype, rows: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, weight and bias that need gradients, bf16 values all."""
    shapes = ((rows, 12), (20, 12), (20,))
    x, w, b = (drawn(*shape, seed=i).to(BF16).to(dtype) for i, shape in enumerate(shapes))
    return x.requires_grad_(), w.requires_grad_(), b.requires_grad_()


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=BF16)


def test_the_forward_under_autocast_is_the_original_bit_for_bit() -> None:
    x, w, b = leaves(torch.float32)
    with autocast():
        ours, theirs = FusedLinearGrads(F.linear)(x, w, b), F.linear(x, w, b)
    assert ours.dtype == BF16
    assert torch.equal(ours, theirs)


def test_gradcheck_holds_in_fp64() -> None:
    linear = FusedLinearGrads(Products(torch.float64, torch.float64).linear)
    assert torch.autograd.gradcheck(linear, leaves(torch.float64, rows=5))
    x, w, _ = leaves(torch.float64, rows=5)
    assert torch.autograd.gradcheck(lambda x, w: linear(x, w, None), (x, w))


def test_gradients_of_fp32_parameters_are_the_sums_themselves() -> None:
    x, w, b = leaves(torch.float32, rows=2222)
    x, grad = x.detach().to(BF16).requires_grad_(), (drawn(2222, 20, seed=7) + 4).to(BF16)
    with autocast():
        out = FusedLinearGrads(F.linear)(x, w, b)
    dx, dw, db = torch.autograd.grad(out, (x, w, b), grad)
    assert (dx.dtype, dw.dtype, db.dtype) == (BF16, torch.float32, torch.float32)
    wide = grad.double()
    torch.testing.assert_close(dw.double(), wide.t() @ x.detach().double(), rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(db.double(), wide.sum(0), rtol=1e-6, atol=1e-3)
    assert torch.equal(dx, torch.mm(grad, w.detach().to(BF16)))


def test_without_autocast_the_dtypes_are_those_of_the_found_methods_owner() -> None:
    x, w, b = leaves(torch.float32)
    x = x.detach().to(BF16).requires_grad_()
    grad = drawn(40, 20, seed=7).to(BF16)
    found = []
    for linear in (CPU_PRODUCTS.linear, FusedLinearGrads(CPU_PRODUCTS.linear)):
        out = linear(x, w, b)
        found.append((out.detach(), *torch.autograd.grad(out, (x, w, b), grad)))
    assert all(map(torch.equal, *found))
    assert [one.dtype for one in found[1]] == [BF16, BF16, torch.float32, torch.float32]


def test_without_autocast_over_a_plain_function_it_refuses_and_says_what_to_do() -> None:
    linear = FusedLinearGrads(F.linear)
    with pytest.raises(BadParameter, match="autocast"):
        linear(*leaves(torch.float32))


@pytest.mark.parametrize(
    "trained", [(True, False, False), (False, True, True), (True, True, False)]
)
def test_only_what_a_gradient_needs_is_kept_and_computed(trained: tuple[bool, ...]) -> None:
    given = leaves(torch.float32)
    inputs = [one.detach().requires_grad_(t) for one, t in zip(given, trained, strict=True)]
    kept: list[Tensor] = []
    keep = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with keep, autocast():
        out = FusedLinearGrads(F.linear)(*inputs)
    assert {tuple(one.shape) for one in kept} == {
        shape for shape, t in (((20, 12), trained[0]), ((40, 12), trained[1])) if t
    }
    assert all(one.dtype == BF16 for one in kept)
    torch.autograd.backward(out.float().sum())
    assert tuple(one.grad is not None for one in inputs) == trained


def test_three_dimensional_inputs_are_rows() -> None:
    x, w, b = leaves(torch.float32)
    with autocast():
        folded = FusedLinearGrads(F.linear)(x.view(4, 10, 12), w, b)
        assert torch.equal(folded.view(40, 20), FusedLinearGrads(F.linear)(x, w, b))


def test_the_backward_runs_two_products_and_one_sum_and_copies_no_gradient() -> None:
    x, w, b = leaves(torch.float32)
    precision = Products(torch.float32, torch.float32)
    out = FusedLinearGrads(precision.linear)(x, w, b)
    grad = torch.ones_like(out)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        torch.autograd.backward(out, grad)
    counts = Counter(event.name for event in seen.events())
    assert (counts["aten::mm"], counts["aten::sum"]) == (2, 1)
    assert not {"aten::copy_", "aten::clone", "aten::contiguous"} & set(counts)


def test_products_sum_in_fp32_and_round_once() -> None:
    left, right = drawn(3, 900).to(BF16) + 4, drawn(900, 5, seed=1).to(BF16) + 4
    truth = left.double() @ right.double()
    wide, narrow = product(left, right, torch.float32), product(left, right, BF16)
    assert float(((wide - truth) / truth).abs().max()) < 1e-6
    assert narrow.dtype == BF16
    assert float(((narrow.double() - truth) / truth).abs().max()) <= 2**-8
    assert product(left.float(), right.float(), BF16).dtype == BF16


def test_the_sum_of_no_rows_is_zero() -> None:
    assert torch.equal(column_sums(torch.empty(0, 3, dtype=BF16), torch.float32), torch.zeros(3))


def test_the_node_has_the_name_that_the_witness_reports() -> None:
    with autocast():
        out = FusedLinearGrads(F.linear)(*leaves(torch.float32))
    assert out.grad_fn is not None
    assert out.grad_fn.name() == f"{FusedLinear.__name__}Backward"


interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels run on the device here (tests/gpu)"
)


@pytest.fixture
def kernels() -> ModuleType:
    pytest.importorskip("triton", reason="triton is not installed")
    return importlib.import_module("levers.kernels.linear_grads_triton")


@interpreted
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (64, 512), (65, 513), (331, 72), (700, 8)])
def test_the_column_sums_equal_fp64_up_to_fp32(
    kernels: ModuleType, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    rows = (drawn(*shape) + 2).to(dtype)
    found = kernels.column_sums_triton(rows, torch.float32)
    assert (found.shape, found.dtype) == (rows.shape[1:], torch.float32)
    torch.testing.assert_close(found.double(), rows.double().sum(0), rtol=1e-6, atol=1e-5)
    assert torch.equal(found, kernels.column_sums_triton(rows, torch.float32))


@interpreted
def test_rows_may_have_any_stride_and_a_nan_stays_in_its_column(kernels: ModuleType) -> None:
    wide = drawn(100, 40)
    for rows in (wide[:, 5:17], wide[::2], wide.t(), torch.ones(1).expand(100, 12)):
        found = kernels.column_sums_triton(rows, torch.float32)
        torch.testing.assert_close(found.double(), rows.double().sum(0), rtol=1e-5, atol=1e-5)
    wide[70, 3] = torch.nan
    found = kernels.column_sums_triton(wide, torch.float32)
    assert found.isnan().nonzero().tolist() == [[3]]


@interpreted
def test_rows_that_fp32_would_narrow_are_refused(kernels: ModuleType) -> None:
    with pytest.raises(TypeError, match="float64"):
        kernels.column_sums_triton(torch.zeros(2, 2, dtype=torch.float64), torch.float32)


@interpreted
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (64, 32), (41, 50), (16, 128)])
def test_one_launch_casts_weight_and_bias(kernels: ModuleType, shape: tuple[int, int]) -> None:
    # values that fp16 holds exactly: the interpreter does not round fp32 to nearest
    weight, bias = (drawn(*one).half().float() for one in (shape, shape[:1]))
    for given in (weight, weight.t().contiguous().t()):
        found = kernels.rounded_triton(given, bias, torch.float16)
        assert all(one.dtype == torch.float16 and one.is_contiguous() for one in found)
        assert torch.equal(found[0].float(), weight)
        assert torch.equal(found[1].float(), bias)


@interpreted
@pytest.mark.parametrize(
    ("shape", "other"),
    [((1, 1), (1, 1)), ((64, 33), (33, 64)), ((41, 150), (3000, 2)), ((9, 5), (0, 9))],
)
def test_one_launch_casts_two_weights_and_their_biases(
    kernels: ModuleType, shape: tuple[int, int], other: tuple[int, int]
) -> None:
    shapes = (shape, shape[:1], other, other[:1])
    given = [drawn(*one, seed=i).half().float() for i, one in enumerate(shapes)]
    for weight in (given[0], given[0].t().contiguous().t()):
        found = kernels.rounded_four_triton(weight, *given[1:], torch.float16)
        assert all(one.dtype == torch.float16 and one.is_contiguous() for one in found)
        for ours, true in zip(found, given, strict=True):
            assert torch.equal(ours.float(), true)


def test_two_linears_parameters_are_each_in_the_asked_dtype() -> None:
    given = [drawn(*one, seed=i) for i, one in enumerate(((4, 3), (4,), (3, 4), (3,)))]
    found = rounded_two(*given, BF16)
    for ours, one in zip(found, given, strict=True):
        assert ours is not None
        assert torch.equal(ours, one.to(BF16))
    assert all(
        ours is one for ours, one in zip(rounded_two(*given, torch.float32), given, strict=True)
    )
