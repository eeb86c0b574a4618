"""The fused modulation: plain PyTorch, the Triton kernels interpreted, the autograd node."""

from __future__ import annotations

import importlib
import itertools
from types import ModuleType

import pytest
import torch
from torch import Tensor

from levers.kernels.modulate import modulate, modulate_to
from levers.kernels.modulate_cases import original
from levers.kernels.segment_sum_cases import CutByOffsets

KERNEL = "levers.kernels.row_norm_triton"
BLOCKS = "levers.kernels.row_blocks_triton"
LENGTHS = [(1,), (1, 1, 1), (7, 8, 9), (33, 31), (0, 5, 0, 35)]
DTYPES = [torch.float32, torch.bfloat16]

# The interpreter rounds fp32 to bf16 towards zero; the device, held to half a unit, to nearest.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2.0**-6}


def cut(lengths: tuple[int, ...]) -> CutByOffsets:
    return CutByOffsets(torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32))


def tensors(lengths: tuple[int, ...], channels: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Rows, shift, scale (columns of one ``[B, 6C]``), gradients of normed rows and stream."""
    draw = torch.Generator().manual_seed(5)
    rows, samples = sum(lengths), len(lengths)
    x, grad, beside = torch.randn(3, rows, channels, generator=draw).to(dtype)
    mod = (0.3 * torch.randn(samples, 6 * channels, generator=draw)).to(dtype)
    shift, scale = mod.chunk(6, dim=1)[:2]
    return x + 1, shift, scale, grad, beside


def truth(one: tuple[Tensor, ...], segments: CutByOffsets, *, beside: bool = True) -> list[Tensor]:
    """Result and gradients of rows, shift and scale in fp64; the stream's gradient if it counts."""
    leaves = [t.double().requires_grad_() for t in one[:3]]
    results = original(tuple(leaves), segments, torch.float64)
    count = 1 + beside
    grads = [t.double() for t in one[3 : 3 + count]]
    return [results[0].detach(), *torch.autograd.grad(results[:count], leaves, grads)]


def close(found: Tensor, true: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
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
def test_the_plain_form_is_the_modulated_norm(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    one, segments = tensors(lengths, 24, dtype), cut(lengths)
    leaves = [t.detach().requires_grad_() for t in one[:3]]
    results = modulate_to(*leaves, segments, dtype)
    assert torch.equal(results[1], leaves[0])
    found = (results[0], *torch.autograd.grad(results, leaves, one[3:]))
    for ours, true in zip(found, truth(one, segments), strict=True):
        assert ours.dtype == dtype
        close(ours, true, dtype)


def test_either_result_may_go_unused() -> None:
    one, segments = tensors((7, 2), 8, torch.float32), cut((7, 2))
    leaves = [t.detach().requires_grad_() for t in one[:3]]
    normed, on = modulate_to(*leaves, segments, torch.float32)
    alone = torch.autograd.grad(normed, leaves, one[3], retain_graph=True)
    for ours, true in zip(alone, truth(one, segments, beside=False)[1:], strict=True):
        close(ours, true, torch.float32)
    passed, *none = torch.autograd.grad(on, leaves, one[4], allow_unused=True)
    assert torch.equal(passed, one[4])
    assert none == [None, None]


def test_the_gradients_of_the_rows_meet_before_they_are_rounded() -> None:
    one, segments = tensors((40, 24), 32, torch.bfloat16), cut((40, 24))
    errors = []
    for call in (original, lambda t, s, d: modulate_to(*t, s, d)):
        leaves = [t.detach().requires_grad_() for t in one[:3]]
        dx = torch.autograd.grad(call(tuple(leaves), segments, torch.bfloat16), leaves, one[3:])[0]
        errors.append(float((dx.double() - truth(one, segments)[1]).norm()))
    assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("channels", [64, 90])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_are_the_modulated_norm(
    interpreted: ModuleType, lengths: tuple[int, ...], channels: int, dtype: torch.dtype
) -> None:
    one, segments = tensors(lengths, channels, dtype), cut(lengths)
    x, shift, scale, grad, beside = one
    y, mean, rstd = interpreted.forward_triton(
        x, scale, shift, segments.cu_seqlens, eps=1e-6, plus_one=True, dtype=dtype
    )
    dx, dscale, dshift = interpreted.backward_triton(
        grad, beside, x, mean, rstd, scale, segments.cu_seqlens, plus_one=True, sums=True
    )
    for ours, true in zip((y, dx, dshift, dscale), truth(one, segments), strict=True):
        assert ours.dtype == dtype
        close(ours, true, dtype)


def test_a_stream_that_nothing_used_has_no_gradient_to_read(interpreted: ModuleType) -> None:
    one, segments = tensors((7, 8, 9), 24, torch.float32), cut((7, 8, 9))
    x, shift, scale, grad, _ = one
    _, mean, rstd = interpreted.forward_triton(
        x, scale, shift, segments.cu_seqlens, eps=1e-6, plus_one=True, dtype=torch.float32
    )
    dx, dscale, dshift = interpreted.backward_triton(
        grad, None, x, mean, rstd, scale, segments.cu_seqlens, plus_one=True, sums=True
    )
    true = truth(one, segments, beside=False)[1:]
    for ours, expected in zip((dx, dshift, dscale), true, strict=True):
        close(ours, expected, torch.float32)


def test_a_frozen_modulation_costs_no_sums(interpreted: ModuleType) -> None:
    one, segments = tensors((5, 40), 32, torch.float32), cut((5, 40))
    x, shift, scale, grad, beside = one
    _, mean, rstd = interpreted.forward_triton(
        x, scale, shift, segments.cu_seqlens, eps=1e-6, plus_one=True, dtype=torch.float32
    )
    dx, dscale, dshift = interpreted.backward_triton(
        grad, beside, x, mean, rstd, scale, segments.cu_seqlens, plus_one=True, sums=False
    )
    assert dscale is None
    assert dshift is None
    close(dx, truth(one, segments)[1], torch.float32)


def test_the_kernels_read_rows_and_gradients_with_any_stride(interpreted: ModuleType) -> None:
    one, segments = tensors((9, 8), 16, torch.float32), cut((9, 8))
    x, shift, scale, grad, beside = one
    wide = torch.cat([x, x], dim=1)[:, :16]
    turned = grad.t().contiguous().t()
    apart = torch.cat([beside, grad], dim=1)[:, :16]
    y, mean, rstd = interpreted.forward_triton(
        wide, scale, shift, segments.cu_seqlens, eps=1e-6, plus_one=True, dtype=torch.float32
    )
    dx, *_ = interpreted.backward_triton(
        turned, apart, wide, mean, rstd, scale, segments.cu_seqlens, plus_one=True, sums=True
    )
    true = truth(one, segments)
    close(y, true[0], torch.float32)
    close(dx, true[1], torch.float32)


def test_the_kernels_repeat_themselves_bit_for_bit(interpreted: ModuleType) -> None:
    one, segments = tensors((70, 3), 16, torch.float32), cut((70, 3))
    x, shift, scale, grad, beside = one
    _, mean, rstd = interpreted.forward_triton(
        x, scale, shift, segments.cu_seqlens, eps=1e-6, plus_one=True, dtype=torch.float32
    )
    runs = [
        interpreted.backward_triton(
            grad, beside, x, mean, rstd, scale, segments.cu_seqlens, plus_one=True, sums=True
        )
        for _ in range(2)
    ]
    assert all(map(torch.equal, *runs))


def test_rows_that_the_kernels_would_narrow_are_refused(interpreted: ModuleType) -> None:
    blocks = importlib.import_module(BLOCKS)
    with pytest.raises(TypeError, match="float64"):
        blocks.with_unit_stride(torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("block", [1, 8, 32])
def test_no_two_blocks_of_rows_share_a_slot_and_none_lies_outside(block: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    blocks = importlib.import_module(BLOCKS)
    draw = torch.Generator().manual_seed(1)
    for _ in range(50):
        lengths = torch.randint(0, 3 * block, (6,), generator=draw).tolist()
        offsets = [0, *itertools.accumulate(lengths)]
        taken = [
            start // block + b + i
            for b, start in enumerate(offsets[:-1])
            for i in range(-(-lengths[b] // block))
        ]
        assert len(set(taken)) == len(taken)
        assert not taken or max(taken) < blocks.slot_count(offsets[-1], 6, block)


def test_gradcheck_holds_in_fp64() -> None:
    segments = cut((3, 1, 4))
    leaves = [t.double().detach().requires_grad_() for t in tensors((3, 1, 4), 5, DTYPES[0])[:3]]
    assert torch.autograd.gradcheck(lambda *t: modulate(*t, segments), leaves)


def test_it_rounds_to_what_the_next_linear_multiplies_in() -> None:
    (x, shift, scale, *_), segments = tensors((3, 2), 8, torch.bfloat16), cut((3, 2))
    assert modulate(x, shift, scale, segments)[0].dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normed, on = modulate(x, shift, scale, segments)
    assert normed.dtype == on.dtype == torch.bfloat16


def test_a_shift_and_a_scale_of_two_dtypes_are_refused() -> None:
    (x, shift, scale, *_), segments = tensors((3, 2), 8, torch.bfloat16), cut((3, 2))
    with pytest.raises(TypeError, match="one dtype"):
        modulate(x, shift.float(), scale, segments)


def test_the_stream_is_kept_in_its_own_dtype_for_the_backward() -> None:
    (x, shift, scale, *_), segments = tensors((30, 20), 64, torch.bfloat16), cut((30, 20))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        modulate(x.requires_grad_(), shift, scale, segments)
    large = [t for t in kept if t.numel() >= x.numel()]
    assert [t.dtype for t in large] == [torch.bfloat16]
    assert large[0].data_ptr() == x.data_ptr()
