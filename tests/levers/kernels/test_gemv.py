"""Products of few rows with their norm and activation, under Triton's interpreter."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor

from levers.kernels.gemv import Norm, Scratch, fused_linear, plain_linear
from levers.kernels.gemv_tilings import (
    FEW_ROWS,
    LARGEST_NORMED_ROWS,
    MANY_ROWS,
    ONE_ROW,
    Tiling,
    candidates,
    tiling,
)

ONE = [Tiling(8, 64, stages=2), Tiling(4, 128), Tiling(2, 32, warps=1)]
FEW = [Tiling(16, 64), Tiling(32, 32)]
SPLIT = [Tiling(16, 32, splits=2), Tiling(16, 32, splits=3), Tiling(16, 64, splits=4)]


@pytest.fixture
def interpreted() -> ModuleType:
    """The launcher under Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("the kernels run on the device here (tests/gpu)")
    return importlib.import_module("levers.kernels.gemv_launch")


def draw(count: int, outputs: int, inputs: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Rows, addend, norm weight and weights."""
    source = torch.Generator().manual_seed(count + outputs + inputs)
    x, delta = torch.randn(2, count, inputs, generator=source)
    norm = 1 + 0.1 * torch.randn(inputs, generator=source)
    weight = torch.randn(outputs, inputs, generator=source) * inputs**-0.5
    return [one.to(dtype) for one in (x, delta, norm, weight)]


@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    ("count", "tile"),
    [(1, ONE[0]), (1, ONE[1]), (1, ONE[2]), (2, FEW[0]), (3, FEW[0]), (7, FEW[1]), (31, FEW[0])],
)
@pytest.mark.parametrize(("outputs", "inputs"), [(37, 96), (32, 128)])
def test_a_normed_product_is_the_norm_and_the_product(
    interpreted: ModuleType,
    outputs: int,
    inputs: int,
    count: int,
    tile: Tiling,
    adds: bool,
    swiglu: bool,
) -> None:
    x, delta, weight_C, weight = draw(count, outputs * (2 if swiglu else 1), inputs)
    sums = [torch.full_like(x, torch.nan) for _ in range(2)]
    norms = [Norm(weight_C, 1e-6, delta if adds else None, one if adds else None) for one in sums]
    found = interpreted.launch(x, weight, norms[0], swiglu, Scratch(), tile)
    expected = plain_linear(x, weight, norms[1], swiglu=swiglu)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not adds or torch.equal(sums[0], x + delta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("tile", [*FEW, *SPLIT])
@pytest.mark.parametrize("count", [2, 32])
def test_a_split_product_is_the_product_and_repeats_itself(
    interpreted: ModuleType, count: int, tile: Tiling, dtype: torch.dtype
) -> None:
    # fp16 for 16 bits: the interpreter multiplies the raw bits of bf16 (tests/gpu has bf16).
    x, _, _, weight = draw(count, 40, 160, dtype)
    scratch = Scratch()
    found = interpreted.launch(x, weight, None, False, scratch, tile)
    truth = x.double() @ weight.double().T
    tolerance = 1e-5 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(found.double(), truth, rtol=tolerance, atol=tolerance)
    for _ in range(2):
        assert torch.equal(interpreted.launch(x, weight, None, False, scratch, tile), found)
    if tile.splits > 1:
        assert not scratch.room(x.device, 1, 1)[1].any()


def test_one_row_can_take_the_kernel_of_several(interpreted: ModuleType) -> None:
    x, _, _, weight = draw(1, 40, 160)
    tile = Tiling(16, 32, splits=2, dot=True)
    found = interpreted.launch(x, weight, None, False, Scratch(), tile)
    torch.testing.assert_close(found, x @ weight.T, rtol=1e-5, atol=1e-5)


def test_small_streams_lose_no_bits_before_they_are_scaled(interpreted: ModuleType) -> None:
    x, _, weight_C, weight = draw(3, 32, 64)
    x *= 1e-37
    found = interpreted.launch(x, weight, Norm(weight_C, 1e-6), False, Scratch(), FEW[0])
    truth = plain_linear(x.double(), weight.double(), Norm(weight_C.double(), 1e-6))
    torch.testing.assert_close(found.double() * 1e34, truth * 1e34, rtol=1e-5, atol=1e-5)


def test_weights_may_be_rows_of_a_wider_matrix(interpreted: ModuleType) -> None:
    x, _, _, weight = draw(1, 24, 64)
    wide = torch.cat([weight, weight], dim=1)[:, :64]
    found = interpreted.launch(x, wide, None, False, Scratch(), ONE[0])
    torch.testing.assert_close(found, x @ weight.T, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="rows must be contiguous"):
        interpreted.launch(x, weight.T.contiguous().T, None, False, Scratch(), ONE[0])


def test_a_normed_product_is_never_split(interpreted: ModuleType) -> None:
    x, _, weight_C, weight = draw(2, 32, 64)
    with pytest.raises(ValueError, match="cannot be split"):
        interpreted.launch(x, weight, Norm(weight_C, 1e-6), False, Scratch(), SPLIT[0])
    for swiglu, norm in ((True, False), (False, True)):
        assert tiling(2, 1024, 2048, swiglu=swiglu, norm=norm).splits == 1
    assert tiling(2, 1024, 3072, swiglu=False, norm=True).inputs == 128


def test_outgrown_room_is_kept_for_the_launches_that_were_captured_with_it() -> None:
    scratch, cpu = Scratch(), torch.device("cpu")
    small = scratch.room(cpu, 10, 2)
    assert scratch.room(cpu, 5, 1)[0] is small[0]
    large = scratch.room(cpu, 20, 2)
    assert large[0].numel() == 20
    assert scratch._outgrown == [small]


def test_on_a_cpu_the_plain_form_runs() -> None:
    x, delta, weight_C, weight = draw(2, 32, 64)
    total = torch.empty_like(x)
    found = fused_linear(x, weight, Norm(weight_C, 1e-6, delta, total), swiglu=True)
    gate, up = (torch.rms_norm(x + delta, (64,), weight_C, 1e-6) @ weight.T).chunk(2, dim=1)
    torch.testing.assert_close(found, torch.nn.functional.silu(gate) * up)
    assert torch.equal(total, x + delta)


def test_every_tiling_of_the_tables_covers_its_shape_with_powers_of_two() -> None:
    for table, count in ((ONE_ROW, 1), (FEW_ROWS, 16), (MANY_ROWS, 17)):
        for (outputs, inputs, swiglu), tile in table.items():
            for value in (tile.rows, tile.inputs, tile.warps):
                assert value & (value - 1) == 0
            assert tile.splits * tile.inputs <= inputs
            assert not (swiglu and tile.splits > 1)
            assert tiling(count, outputs, inputs, swiglu=swiglu, norm=False) == tile
            programs = -(-outputs // tile.rows) * tile.splits
            assert programs >= 128
    assert LARGEST_NORMED_ROWS < 16


@pytest.mark.parametrize("count", [1, 2, 32])
@pytest.mark.parametrize(("outputs", "inputs"), [(512, 128), (704, 256), (10, 16), (4096, 3000)])
def test_other_shapes_follow_a_rule(count: int, outputs: int, inputs: int) -> None:
    tile = tiling(count, outputs, inputs, swiglu=False, norm=False)
    assert tile.inputs & (tile.inputs - 1) == 0
    assert 1 <= tile.splits <= max(1, -(-inputs // tile.inputs))


@pytest.mark.parametrize("count", [1, 8])
def test_a_sweep_begins_with_the_tables_choice_and_repeats_none(count: int) -> None:
    found = list(candidates(count, 1024, 3072, swiglu=False))
    assert found[0] == tiling(count, 1024, 3072, swiglu=False, norm=False)
    assert len(set(found)) == len(found) >= 8
    assert all(one.splits == 1 for one in candidates(count, 3072, 1024, swiglu=True))
