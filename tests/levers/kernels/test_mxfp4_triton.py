"""The MXFP4 kernels under Triton's interpreter, on the CPU, against fp64 of the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from levers.kernels.mxfp4_matrix import Mxfp4Weight, quantise
from levers.kernels.mxfp4_plans import Plan

pytest.importorskip("triton", reason="triton is not installed")

from levers.kernels import mxfp4_launch
from levers.kernels.mxfp4_dequantise_triton import dequantise_triton
from levers.kernels.mxfp4_launch import Epilogue, product
from levers.kernels.mxfp4_norm_triton import stream_norm_triton

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels run on the device here (tests/gpu)"
)


def draw(rows: int, outputs: int, inputs: int, seed: int = 2) -> tuple[Tensor, Mxfp4Weight]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator)
    return x, quantise(torch.randn(outputs, inputs, generator=generator) * inputs**-0.5)


def truth(x: Tensor, weight: Mxfp4Weight) -> Tensor:
    return x.double() @ weight.dequantise(torch.float64).t()


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "plan"),
    [
        (1, 48, 256, Plan(1, 2, 1)),
        (1, 16, 640, Plan(1, 2, 2)),
        (2, 32, 512, Plan(1, 1, 2)),
        (3, 33, 128, Plan(2, 1, 3)),
        (8, 40, 640, Plan(4, 2, 1)),
        (9, 64, 96, Plan(2, 2)),
        (31, 16, 224, Plan(1, 1, 1)),
    ],
)
@pytest.mark.parametrize("version", [(3, 6), (3, 7), (3, 9)])
def test_the_product_is_that_of_the_quantised_weights(
    rows: int,
    outputs: int,
    inputs: int,
    plan: Plan,
    version: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole units and padded ones, in one round and more, in every order of the layouts."""
    monkeypatch.setattr(mxfp4_launch, "_triton", lambda: version)
    x, weight = draw(rows, outputs, inputs)
    found = product(x, weight, Epilogue(), plan)
    torch.testing.assert_close(found.double(), truth(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("plan", [Plan(1, 1), Plan(2, 2)], ids=str)
def test_the_epilogue_adds_and_leaves_the_squares_of_what_is_written(plan: Plan) -> None:
    x, weight = draw(5, 80, 512)
    bias, residual = torch.randn(80), torch.randn(5, 80)
    squares = torch.full((plan.programs(80), 5), torch.nan)
    found = product(x, weight, Epilogue(bias, residual, squares), plan)
    expected = truth(x, weight) + bias + residual
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(squares.sum(0), found.square().sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("plan", [Plan(1, 2), Plan(2, 1)], ids=str)
def test_the_gate_is_that_of_the_first_half_of_the_rows(plan: Plan) -> None:
    """Three tiles of each half: with two of a program the last one has one that is another's."""
    x, weight = draw(3, 96, 256)
    gate, up = truth(x, weight).chunk(2, dim=-1)
    found = product(x, weight, Epilogue(gate=True), plan)
    assert found.shape == (3, 48)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_rows_above_those_of_one_launch_take_a_second() -> None:
    x, weight = draw(40, 32, 128)
    bias, residual = torch.randn(32), torch.randn(40, 32)
    found = product(x, weight, Epilogue(bias, residual), Plan(1, 1))
    expected = truth(x, weight) + bias + residual
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_rows_with_a_stride_are_read_where_they_are() -> None:
    x, weight = draw(4, 32, 256)
    wide = torch.full((4, 512), torch.nan)
    wide[:, :256] = x
    found = product(wide[:, :256], weight, Epilogue())
    torch.testing.assert_close(found.double(), truth(x, weight), rtol=1e-5, atol=1e-5)


def test_scales_from_the_least_to_the_most_come_out_exact() -> None:
    weight = torch.zeros(16, 256)
    for row in range(16):
        weight[row] = 6.0 * 2.0 ** (1 - 8 * row)
    weight[0, 0], weight[1, 5] = -0.5 * 2.0, 1.5 * 2.0**-7
    x = torch.zeros(2, 256)
    x[0, 0], x[1, 5] = 1.0, 1.0
    found = product(x, quantise(weight), Epilogue(), Plan(1, 1))
    assert torch.equal(found[0], weight[:, 0])
    assert torch.equal(found[1], weight[:, 5])


@pytest.mark.parametrize("inputs", [32, 96, 128, 1536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_dequantising_kernel_is_plain_dequantising(inputs: int, dtype: torch.dtype) -> None:
    _, weight = draw(1, 21, inputs)
    assert torch.equal(dequantise_triton(weight, dtype), weight.dequantise(dtype))


def test_what_the_kernel_does_not_take_is_an_error() -> None:
    x, weight = draw(65, 48, 128)
    with pytest.raises(ValueError, match="65 rows"):
        product(x, weight, Epilogue())
    with pytest.raises(ValueError, match="whole tiles"):
        product(x[:2], weight, Epilogue(gate=True))
    with pytest.raises(ValueError, match="16 warps"):
        product(x[:2], weight, Epilogue(), Plan(1, 16))
    with pytest.raises(ValueError, match="squares"):
        product(x[:2], weight, Epilogue(squares_TN=torch.zeros(4, 3)))


@pytest.mark.parametrize("channels", [128, 200])
def test_the_norm_before_a_product_adds_rounds_and_scales(channels: int) -> None:
    generator = torch.Generator().manual_seed(9)
    x, delta = torch.randn(2, 3, channels, generator=generator)
    weight, total = torch.rand(channels, generator=generator), torch.full((3, channels), torch.nan)
    found = stream_norm_triton(x, delta, weight, 1e-6, total)
    assert torch.equal(total, x + delta)
    expected = torch.rms_norm(x + delta, (channels,), weight, 1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    plain = stream_norm_triton(x, None, weight, 1e-6, None)
    torch.testing.assert_close(plain, torch.rms_norm(x, (channels,), weight, 1e-6))
    with pytest.raises(ValueError, match="strides"):
        stream_norm_triton(x, delta, weight, 1e-6, torch.empty(channels, 3).t())
