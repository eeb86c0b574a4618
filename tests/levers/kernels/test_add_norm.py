"""The fused add and norm: PyTorch's bits, and the Triton kernel interpreted."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from levers.kernels.add_norm import AddNorm

EPS = 1e-6


def tensors(rows: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(rows + channels)
    x, delta = torch.randn(2, rows, channels, generator=draw).to(dtype)
    return x, delta, (1 + 0.1 * torch.randn(channels, generator=draw)).to(dtype)


@pytest.fixture
def interpreted() -> ModuleType:
    """The kernel's module under Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("the kernel runs on the device here (tests/gpu)")
    return importlib.import_module("levers.kernels.add_norm_triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("rows", "channels"), [(1, 128), (7, 1024), (33, 130), (2, 7)])
def test_on_a_cpu_it_is_the_sum_and_its_norm_bit_for_bit(
    rows: int, channels: int, dtype: torch.dtype
) -> None:
    x, delta, weight = tensors(rows, channels, dtype)
    before = x.clone(), delta.clone()
    total, normed = AddNorm()(x, delta, weight, EPS)
    assert torch.equal(total, x + delta)
    assert torch.equal(normed, functional.rms_norm(total, (channels,), weight, EPS))
    assert torch.equal(x, before[0])
    assert torch.equal(delta, before[1])


def test_it_refuses_tensors_of_different_dtypes_and_says_what_it_ran() -> None:
    x, delta, weight = tensors(2, 8, torch.float32)
    op = AddNorm()
    with pytest.raises(TypeError, match="use one dtype"):
        op(x, delta.bfloat16(), weight, EPS)
    assert op.ran == ""
    op(x, delta, weight, EPS)
    assert op.ran == "torch rms_norm"


# fp16: the interpreter rounds fp32 to bf16 towards zero; the device tests have bf16.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "channels"), [(1, 128), (3, 1024), (2, 2560), (4, 130), (2, 7)])
def test_the_kernel_adds_and_norms(
    interpreted: ModuleType, rows: int, channels: int, dtype: torch.dtype
) -> None:
    x, delta, weight = tensors(rows, channels, dtype)
    total, normed = interpreted.add_norm_triton(x, delta, weight, EPS)
    assert torch.equal(total, x + delta)
    truth = functional.rms_norm(total.double(), (channels,), weight.double(), EPS)
    tolerance = 1e-6 if dtype is torch.float32 else 2.0**-10
    torch.testing.assert_close(normed.double(), truth, rtol=tolerance, atol=tolerance)


def test_the_kernel_reads_rows_of_any_stride(interpreted: ModuleType) -> None:
    x, delta, weight = tensors(3, 64, torch.float32)
    wide = torch.cat([x, x], dim=1)[:, :64]
    turned = delta.t().contiguous().t()
    expected = interpreted.add_norm_triton(x, delta, weight, EPS)
    found = interpreted.add_norm_triton(wide, turned, weight, EPS)
    assert all(map(torch.equal, found, expected))


def test_no_rows_are_no_launch(interpreted: ModuleType) -> None:
    total, normed = interpreted.add_norm_triton(*tensors(0, 64, torch.float32), EPS)
    assert total.shape == normed.shape == (0, 64)


def sum_in_the_library_order(row: Tensor) -> Tensor:
    """The squares of one row as PyTorch's kernel sums them, in single steps of fp32.

    128 threads take quads of 4 channels in turn; lanes meet 16, 8, 4, 2, 1 apart, then warps.
    """
    threads = torch.zeros(128)
    for quad, values in enumerate(row.view(-1, 4)):
        for value in values:
            threads[quad % 128] += value * value
    lanes = threads.view(4, 32)
    for apart in (16, 8, 4, 2, 1):
        lanes = lanes[:, :apart] + lanes[:, apart : 2 * apart]
    warps = lanes[:, 0]
    return (warps[0] + warps[2]) + (warps[1] + warps[3])


@pytest.mark.parametrize("channels", [128, 1024, 2560])
def test_the_kernel_sums_in_the_order_of_the_library(
    interpreted: ModuleType, channels: int
) -> None:
    # Values of 11 bits have exact squares, so that only the order of the sums is at stake.
    x, delta, _ = tensors(2, channels, torch.float16)
    rows = (x + delta).float()
    _, normed = interpreted.add_norm_triton(rows, 0 * rows, torch.ones(channels), EPS)
    for row, found in zip(rows, normed, strict=True):
        mean = sum_in_the_library_order(row) / channels
        assert torch.equal(found, torch.rsqrt(mean + EPS) * row)
