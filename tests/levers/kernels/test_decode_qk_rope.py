"""Head norm, rotation and split as one operation: PyTorch's bits, and the kernel interpreted."""

from __future__ import annotations

import importlib
from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor

from experiments.workloads.decode import original
from levers.kernels import decode_qk_rope_cases as cases
from levers.kernels.decode_qk_rope import QkNormRope

EPS = cases.EPS
SIZES = [(2, 1, 8, True), (4, 2, 16, False), (3, 3, 12, True), (2, 1, 128, True)]


def inputs(size: tuple[int, int, int, bool], count: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    case = cases._case(size, count, dtype, "cpu")
    return case.inputs(count)


def unpacked(
    one: tuple[Tensor, ...], heads: tuple[int, int]
) -> tuple[Tensor, tuple[Tensor, Tensor] | None, tuple[Tensor, Tensor], tuple[int, int], float]:
    packed, cos, sin, *norms = one
    return packed, (norms[0], norms[1]) if norms else None, (cos, sin), heads, EPS


@pytest.fixture
def interpreted() -> ModuleType:
    """The kernel's module under Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("the kernel runs on the device here (tests/gpu)")
    return importlib.import_module("levers.kernels.decode_qk_rope_triton")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 5])
def test_on_a_cpu_it_gives_the_bits_of_the_decoders_own_operations(
    size: tuple[int, int, int, bool], count: int, dtype: torch.dtype
) -> None:
    arguments = unpacked(inputs(size, count, dtype), size[:2])
    kept = arguments[0].clone()
    for found, expected in zip(
        QkNormRope()(*arguments), original.qk_norm_rope(*arguments), strict=True
    ):
        assert torch.equal(found, expected)
    assert torch.equal(arguments[0], kept)


@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_norms_and_turns_every_head(
    interpreted: ModuleType, size: tuple[int, int, int, bool]
) -> None:
    one = inputs(size, 2, torch.float32)
    found = interpreted.qk_norm_rope_triton(*unpacked(one, size[:2]))
    for ours, expected in zip(found, cases.original(size[:2], one), strict=True):
        torch.testing.assert_close(ours, expected, rtol=2e-6, atol=2e-6)


def test_the_kernel_rounds_where_the_separate_operations_round(interpreted: ModuleType) -> None:
    size = (4, 2, 64, False)
    one = inputs(size, 3, torch.float16)
    found = interpreted.qk_norm_rope_triton(*unpacked(one, size[:2]))
    assert all(map(torch.equal, found, cases.original(size[:2], one)))


@pytest.mark.parametrize(("size", "count"), [*((size, 1) for size in SIZES[:3]), (SIZES[0], 33)])
def test_keys_and_values_can_go_straight_into_a_cache(
    interpreted: ModuleType, size: tuple[int, int, int, bool], count: int
) -> None:
    h, k, d, _ = size
    one = inputs(size, count, torch.float32)
    run = partial(interpreted.qk_norm_rope_triton, *unpacked(one, (h, k)))
    q, keys, values = run()
    k_RD, v_RD = torch.full((2, count * k + 5, d), 7.0)
    rows = torch.randperm(count * k + 5, generator=torch.Generator().manual_seed(1))[: count * k]
    q_stored, _, _ = run(stored=(k_RD, v_RD, rows))
    assert torch.equal(q_stored, q)
    assert torch.equal(k_RD[rows].view(count, k, d), keys)
    assert torch.equal(v_RD[rows].view(count, k, d), values)
    untouched = torch.ones(len(k_RD), dtype=torch.bool)
    untouched[rows] = False
    assert (k_RD[untouched] == 7.0).all()
    assert (v_RD[untouched] == 7.0).all()


def test_a_projection_of_another_width_is_refused() -> None:
    one = unpacked(inputs((2, 1, 8, False), 1, torch.float32), (2, 1))
    with pytest.raises(ValueError, match="does not hold"):
        QkNormRope()(one[0], None, one[2], (3, 1), EPS)
