"""The fp32 segment sum: plain PyTorch, the Triton kernel interpreted, the autograd node."""

from __future__ import annotations

import importlib
import itertools
from types import ModuleType

import pytest
import torch
from torch import Tensor

from levers.kernels.segment_sum import (
    broadcast,
    segment_sum_torch,
    segment_sum_truth,
)
from levers.kernels.segment_sum_cases import CutByOffsets

KERNEL = "levers.kernels.segment_sum_triton"
LENGTHS = [(1,), (1, 1, 1), (16, 17, 15), (256, 257, 255), (700, 1, 33), (0, 5, 0, 3)]


def cut(lengths: tuple[int, ...]) -> CutByOffsets:
    return CutByOffsets(torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32))


def rows(lengths: tuple[int, ...], channels: int, dtype: torch.dtype, mean: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(sum(lengths), channels, generator=generator) + mean).to(dtype)


@pytest.fixture
def interpreted() -> ModuleType:
    """The kernel's module under Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("the kernel runs on the device here (tests/gpu)")
    return importlib.import_module(KERNEL)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plain_pytorch_sums_each_segment(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    g = rows(lengths, 40, dtype)
    found = segment_sum_torch(g, cut(lengths), torch.float32)
    torch.testing.assert_close(
        found.double(), segment_sum_truth(g, cut(lengths)), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernel_equals_fp64_up_to_one_rounding(
    interpreted: ModuleType, lengths: tuple[int, ...], dtype: torch.dtype
) -> None:
    g, segments = rows(lengths, 130, dtype, mean=1.0), cut(lengths)
    found = interpreted.segment_sum_triton(g, segments.offsets, segments.cu_seqlens, dtype)
    truth = segment_sum_truth(g, segments)
    # The interpreter rounds fp32 to bf16 towards zero; the device, held to half a unit, to nearest.
    ulp = 2.0**-7 if dtype == torch.bfloat16 else 2.0**-22
    assert found.dtype == dtype
    assert ((found.double() - truth).abs() <= ulp * truth.abs() + 1e-5).all()


def test_the_kernel_reads_rows_with_any_stride(interpreted: ModuleType) -> None:
    segments, wide = cut((9, 8)), rows((9, 8), 24, torch.float32)
    for g in (wide[:, 4:12], wide.t().contiguous().t()):
        found = interpreted.segment_sum_triton(
            g, segments.offsets, segments.cu_seqlens, torch.float32
        )
        torch.testing.assert_close(
            found.double(), segment_sum_truth(g, segments), rtol=1e-5, atol=1e-5
        )


def test_the_forward_is_the_gather_bit_for_bit() -> None:
    segments, mod = cut((3, 1, 7)), rows((3,), 12, torch.bfloat16)
    assert torch.equal(broadcast(mod, segments), mod[segments.batch_map])


def test_gradcheck_holds_in_fp64() -> None:
    segments = cut((3, 1, 4))
    mod = rows((3,), 5, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: broadcast(m, segments), (mod,))


def test_the_backward_of_a_strided_row_block_keeps_dtype_and_shape() -> None:
    segments = cut((3, 2))
    mod = rows((2,), 24, torch.bfloat16).requires_grad_()
    part = mod.chunk(6, dim=1)[2]
    torch.autograd.backward(broadcast(part, segments).float().sum())
    assert mod.grad is not None
    assert mod.grad.dtype == torch.bfloat16
    assert mod.grad[:, 8:12].tolist() == [[3.0] * 4, [2.0] * 4]


@pytest.mark.parametrize(
    ("rows_of_one", "mean", "indexed_at_least"),
    [(2222, 0.0, 3e-2), (2222, 1.0, 0.4), (8192, 0.1, 0.1), (8192, 1.0, 0.7)],
)
def test_bf16_indexing_loses_what_the_segment_sum_keeps(
    rows_of_one: int, mean: float, indexed_at_least: float
) -> None:
    segments, g = cut((rows_of_one,)), rows((rows_of_one,), 64, torch.bfloat16, mean)
    truth = segment_sum_truth(g, segments)
    mod = torch.zeros(1, 64, dtype=torch.bfloat16, requires_grad=True)
    indexed = torch.autograd.grad(mod[segments.batch_map], mod, g)[0]
    ours = torch.autograd.grad(broadcast(mod, segments), mod, g)[0]
    error = [float((one.double() - truth).norm() / truth.norm()) for one in (indexed, ours)]
    assert error[0] > indexed_at_least
    assert error[1] < 3e-3
