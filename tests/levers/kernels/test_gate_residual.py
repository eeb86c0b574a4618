"""The fused gated residual: plain PyTorch, the Triton kernels interpreted, the autograd node."""

from __future__ import annotations

import importlib
import itertools
from types import ModuleType

import pytest
import torch
from torch import Tensor

from levers.kernels.gate_residual import gate_residual
from levers.kernels.gate_residual_cases import original
from levers.kernels.segment_sum_cases import CutByOffsets

KERNEL = "levers.kernels.gate_residual_triton"
LENGTHS = [(1,), (1, 1, 1), (7, 8, 9), (33, 31), (0, 5, 0, 35)]
DTYPES = [torch.float32, torch.bfloat16]

# The interpreter rounds fp32 to bf16 towards zero; the device, held to half a unit, to nearest.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7}


def cut(lengths: tuple[int, ...]) -> CutByOffsets:
    return CutByOffsets(torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32))


def tensors(lengths: tuple[int, ...], channels: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Stream, branch, gate (columns of one ``[B, 6C]``) and the result's gradient."""
    draw = torch.Generator().manual_seed(7)
    x, h, grad = torch.randn(3, sum(lengths), channels, generator=draw).to(dtype)
    mod = torch.randn(len(lengths), 6 * channels, generator=draw).to(dtype)
    return x, h + 1, mod.chunk(6, dim=1)[2], grad


def truth(one: tuple[Tensor, ...], segments: CutByOffsets) -> tuple[Tensor, ...]:
    """Result and gradients of stream, branch and gate in fp64."""
    leaves = [t.double().requires_grad_() for t in one[:3]]
    (result,) = original(tuple(leaves), segments, torch.float64)
    return result.detach(), *torch.autograd.grad(result, leaves, one[3].double())


def close(found: Tensor, true: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), true, rtol=tolerance, atol=4 * tolerance)


@pytest.fixture
def interpreted() -> ModuleType:
    """The kernel's module under Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("the kernel runs on the device here (tests/gpu)")
    return importlib.import_module(KERNEL)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plain_form_is_the_gated_sum(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    one, segments = tensors(lengths, 24, dtype), cut(lengths)
    leaves = [t.detach().requires_grad_() for t in one[:3]]
    result = gate_residual(*leaves, segments)
    found = (result, *torch.autograd.grad(result, leaves, one[3]))
    for ours, true in zip(found, truth(one, segments), strict=True):
        close(ours, true, dtype)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("channels", [64, 530])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_are_the_gated_sum(
    interpreted: ModuleType, lengths: tuple[int, ...], channels: int, dtype: torch.dtype
) -> None:
    (x, h, gate, grad), segments = tensors(lengths, channels, dtype), cut(lengths)
    out = interpreted.forward_triton(x, h, gate, segments.cu_seqlens)
    dh, dgate = interpreted.backward_triton(grad, h, gate, segments.cu_seqlens, sums=True)
    true = truth((x, h, gate, grad), segments)
    for ours, one in zip((out, dh, dgate), (true[0], true[2], true[3]), strict=True):
        close(ours, one, dtype)


def test_a_frozen_gate_costs_no_sums(interpreted: ModuleType) -> None:
    (x, h, gate, grad), segments = tensors((5, 40), 32, torch.float32), cut((5, 40))
    dh, dgate = interpreted.backward_triton(grad, h, gate, segments.cu_seqlens, sums=False)
    assert dgate is None
    close(dh, truth((x, h, gate, grad), segments)[2], torch.float32)


def test_the_kernels_read_rows_with_any_stride(interpreted: ModuleType) -> None:
    (x, h, gate, grad), segments = tensors((9, 8), 16, torch.float32), cut((9, 8))
    true = truth((x, h, gate, grad), segments)
    wide, turned = torch.cat([h, h], dim=1)[:, :16], grad.t().contiguous().t()
    close(interpreted.forward_triton(x, wide, gate, segments.cu_seqlens), true[0], torch.float32)
    dh, dgate = interpreted.backward_triton(turned, wide, gate, segments.cu_seqlens, sums=True)
    close(dh, true[2], torch.float32)
    close(dgate, true[3], torch.float32)


def test_gradcheck_holds_in_fp64() -> None:
    segments = cut((3, 1, 4))
    leaves = [t.double().detach().requires_grad_() for t in tensors((3, 1, 4), 5, DTYPES[0])[:3]]
    assert torch.autograd.gradcheck(lambda *t: gate_residual(*t, segments), leaves)


def test_the_stream_takes_the_gradient_itself() -> None:
    (x, h, gate, grad), segments = tensors((3, 2), 8, torch.float32), cut((3, 2))
    leaves = [t.detach().requires_grad_() for t in (x, h, gate)]
    dx = torch.autograd.grad(gate_residual(*leaves, segments), leaves, grad)[0]
    assert dx.data_ptr() == grad.data_ptr()


def test_it_rounds_once_where_the_original_rounds_twice() -> None:
    (x, h, gate, grad), segments = tensors((300, 200), 32, torch.bfloat16), cut((300, 200))
    true = truth((x, h, gate, grad), segments)[0]
    error = [
        float((one.double() - true).norm())
        for one in (
            original((x, h, gate), segments, x.dtype)[0],
            gate_residual(x, h, gate, segments),
        )
    ]
    assert error[1] < 0.95 * error[0]


def test_a_stream_and_a_branch_of_two_dtypes_are_refused() -> None:
    (x, h, gate, _), segments = tensors((3, 2), 8, torch.bfloat16), cut((3, 2))
    with pytest.raises(TypeError, match="one dtype"):
        gate_residual(x.float(), h, gate, segments)
