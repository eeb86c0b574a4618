"""The MXFP4 quantiser against a slow scalar one and the specification's tables; the matrix."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from levers.kernels import mxfp4, mxfp4_matrix
from levers.kernels.gemv import FusedMatrix, Norm
from levers.kernels.mxfp4 import BLOCK, VALUES, element_codes
from levers.kernels.mxfp4_matrix import quantise

E2M1 = dict(enumerate(("0", "0.5", "1", "1.5", "2", "3", "4", "6")))
"""OCP MX v1.0, table 5."""


def normal(*shape: int, seed: int = 3, scale: float = 0.02) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(torch.bfloat16)


def rounded(value: Fraction) -> int:
    """The code of a magnitude by exact arithmetic: nearest, ties to the even code, saturating."""
    grid = [Fraction(text) for text in E2M1.values()]
    return min(range(8), key=lambda code: (abs(value - grid[code]), code % 2))


def slow_block(block: list[float]) -> tuple[list[int], int]:
    """Codes and scale code of one block, element by element, in exact fractions."""
    exact = [Fraction(value) for value in block]
    largest = max(abs(value) for value in exact)
    low = math.frexp(float(largest))[1] - 3 if largest else -3
    low = min(max(low, -126), 1)
    best: tuple[Fraction, list[int], int] | None = None
    for exponent in (low, min(low + 1, 1)):
        unit = Fraction(2) ** exponent
        codes = [rounded(abs(value) / unit) for value in exact]
        error = sum(
            ((abs(v) - Fraction(E2M1[c]) * unit) ** 2 for v, c in zip(exact, codes, strict=True)),
            Fraction(0),
        )
        if best is None or error < best[0]:
            best = (error, codes, exponent)
    assert best is not None
    signs = [8 if math.copysign(1.0, value) < 0 else 0 for value in block]
    return [code | sign for code, sign in zip(best[1], signs, strict=True)], best[2] + 127


def test_the_magnitudes_are_those_of_the_specification() -> None:
    assert [float(text) for text in E2M1.values()] == list(VALUES)
    for code, text in E2M1.items():
        exponent, mantissa = code >> 1, code & 1
        value = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
        assert value == float(text)


@pytest.mark.parametrize("seed", range(3))
def test_the_quantiser_is_the_slow_one_on_random_blocks(seed: int) -> None:
    weight = normal(6, 4 * BLOCK, seed=seed)
    weight[:, ::7] *= 2.0**seed * 3
    codes, scales = element_codes(weight)
    for row in range(weight.shape[0]):
        for block in range(weight.shape[1] // BLOCK):
            inside = slice(block * BLOCK, (block + 1) * BLOCK)
            slow, scale = slow_block(weight[row, inside].float().tolist())
            assert codes[row, inside].tolist() == slow
            assert int(scales[row, block]) == scale


def test_ties_go_to_even_and_signs_stay() -> None:
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    block = torch.zeros(1, BLOCK)
    block[0, 0] = 6.0
    block[0, 1:8], block[0, 8:15] = torch.tensor(ties), -torch.tensor(ties)
    codes, scales = element_codes(block)
    assert int(scales[0, 0]) == 127
    assert codes[0, 1:8].tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert codes[0, 8:15].tolist() == [8, 10, 10, 12, 12, 14, 14]


def test_of_two_neighbouring_exponents_the_one_with_the_smaller_error_is_taken() -> None:
    low, high = torch.zeros(2, 1, BLOCK)
    low[0], high[0] = 0.5, 7.9
    low[0, 0] = 7.0
    _, scales = element_codes(torch.cat((low, high)))
    assert scales.flatten().tolist() == [127, 128]
    for row in (low, high):
        errors = []
        for exponent in (0, 1):
            unit = torch.tensor([[exponent]])
            errors.append(float(mxfp4._squared_error(row.double(), unit)))
        assert (errors[0] <= errors[1]) == (row is low)


def test_what_is_on_the_grid_comes_back_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(5)
    signed = torch.tensor([*VALUES, *(-value for value in VALUES)])
    values = signed[torch.randint(16, (33, 128), generator=generator)]
    values[:, ::BLOCK] = 6.0
    weight = (values * 2.0**-9).to(torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert torch.equal(quantise(weight).dequantise(dtype), weight.to(dtype))


def test_the_error_is_that_of_two_bits_of_mantissa() -> None:
    weight = normal(64, 512)
    back = quantise(weight).dequantise(torch.float64)
    error = float((back - weight.double()).norm() / weight.double().norm())
    spec = weight.double().unflatten(-1, (-1, BLOCK))
    low = torch.frexp(spec.abs().amax(-1, keepdim=True)).exponent - 3
    plain = float(mxfp4._squared_error(spec, low).sum().sqrt() / weight.double().norm())
    assert 0.09 < error < plain < 0.13


def test_a_weight_takes_four_and_a_quarter_bits() -> None:
    weight = quantise(normal(64, 512))
    assert weight.shape == (64, 512)
    assert weight.nbytes == 64 * 512 * 17 // 32
    assert quantise(normal(61, 416)).nbytes == weight.nbytes


def test_chunks_of_rows_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantise(normal(50, 128))
    monkeypatch.setattr(mxfp4_matrix, "CHUNK_ELEMENTS", 37 * 128)
    parts = quantise(normal(50, 128))
    assert torch.equal(whole.words, parts.words)
    assert torch.equal(whole.codes, parts.codes)


@pytest.mark.parametrize("value", [math.nan, math.inf, 12.5])
def test_what_has_no_form_is_refused_with_the_reason(value: float) -> None:
    weight = normal(4, 64)
    weight[1, 3] = value
    assert "largest weight" in mxfp4.refusal(weight)
    with pytest.raises(ValueError, match="leave the matrix as it is"):
        quantise(weight)
    assert "whole blocks" in mxfp4.refusal(normal(4, 48))
    assert mxfp4.refusal(normal(4, 64)) == ""


def test_zeros_and_tiny_weights_have_a_form() -> None:
    for scale in (0.0, 1e-41):
        weight = torch.full((2, 64), scale)
        assert torch.equal(quantise(weight).dequantise(torch.float32), weight * 0)
    tiny = torch.full((1, 32), 2.0**-120)
    assert torch.equal(quantise(tiny).dequantise(torch.float32), tiny)


def test_a_linear_keeps_leading_dimensions_and_adds_bias_and_residual() -> None:
    weight, bias = quantise(normal(16, 64, scale=0.2)), torch.ones(16)
    x, residual = normal(2, 3, 64, scale=1.0).float(), torch.ones(2, 3, 16)
    plain = x @ weight.dequantise(torch.float32).t()
    torch.testing.assert_close(weight.linear(x), plain)
    torch.testing.assert_close(weight.linear(x, bias, residual), plain + 2)
    assert weight.linear(x[0, 0]).shape == (16,)
    gate, up = plain.chunk(2, dim=-1)
    torch.testing.assert_close(weight.swiglu(x), torch.nn.functional.silu(gate) * up)


def test_it_takes_part_in_a_fused_block_with_the_norm_before_it() -> None:
    weight, x, delta = quantise(normal(16, 64, scale=0.2)), *normal(2, 3, 64, scale=1.0).float()
    norm = Norm(torch.rand(64), 1e-6, delta, torch.empty_like(x))
    assert isinstance(weight, FusedMatrix)
    normed = torch.rms_norm(x + delta, (64,), norm.weight_C, norm.eps)
    assert torch.equal(weight.fused_linear(x, norm, False), weight.linear(normed))
    assert torch.equal(weight.fused_linear(x, norm, True), weight.swiglu(normed))
    assert norm.sum_NC is not None
    assert torch.equal(norm.sum_NC, x + delta)
    assert torch.equal(weight.fused_linear(x, None, False), weight.linear(x))
