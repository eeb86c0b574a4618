from __future__ import annotations

import math

import pytest
import torch

from experiments.parity import compare
from experiments.parity.bounds import ratio
from experiments.parity.compare import Errors


def test_bits_tell_minus_zero_from_zero_and_nan_equals_itself() -> None:
    zero, minus = torch.tensor([0.0]), torch.tensor([-0.0])
    assert not compare.bit_equal(zero, minus)
    nan = torch.tensor([math.nan])
    assert compare.bit_equal(nan, nan.clone())
    assert not compare.bit_equal(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert not compare.bit_equal(torch.zeros(2), torch.zeros(1, 2))


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8],
)
def test_an_untouched_output_holds_both_poisons_and_a_written_one_does_not(
    dtype: torch.dtype,
) -> None:
    first, second = torch.empty(4, 3, dtype=dtype), torch.empty(4, 3, dtype=dtype)
    compare.poison(first, finite=False)
    compare.poison(second, finite=True)
    assert compare.unwritten(first, second) == 12
    first[0], second[0] = 1, 1
    assert compare.unwritten(first, second) == 9


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.0, torch.float32, 2.0**-23),
        (1.999, torch.float32, 2.0**-23),
        (17.0, torch.bfloat16, 2.0**-3),
        (-17.0, torch.bfloat16, 2.0**-3),
        (0.0, torch.float32, 2.0**-149),
        (1e-42, torch.float32, 2.0**-149),
        (3e38, torch.bfloat16, 2.0**120),
        (1e300, torch.float64, 2.0**944),
        (1.0, torch.float16, 2.0**-10),
    ],
)
def test_the_unit_in_the_last_place(value: float, dtype: torch.dtype, expected: float) -> None:
    found = compare.ulps_of(torch.tensor([value], dtype=torch.float64), dtype)
    assert float(found) == expected


def pooled(chunk: int, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(compare, "CHUNK_ELEMENTS", chunk)
    truth = torch.randn(37, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    output = truth.float()
    output[20] += 0.5
    mask = torch.zeros(37, 11, dtype=torch.bool)
    mask[3, 4] = True
    output[3, 4], truth[3, 4] = math.nan, math.inf
    errors = Errors()
    errors.add(output, truth, mask)
    return errors


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = pooled(1 << 20, monkeypatch), pooled(25, monkeypatch)
    assert parts.squared == pytest.approx(whole.squared, rel=1e-12)
    assert (parts.elements, parts.row_count) == (whole.elements, whole.row_count) == (406, 37)
    assert (parts.worst_row, whole.worst_row) == (20, 20)
    assert parts.row_p99 == pytest.approx(whole.row_p99)
    assert whole.norm == pytest.approx(0.5 * math.sqrt(11), rel=1e-5)


def test_draws_are_pooled() -> None:
    errors = Errors()
    for shift in (0.0, 3.0, 4.0):
        truth = torch.ones(1, 1, dtype=torch.float64)
        errors.add((truth + shift).float(), truth, None)
    assert errors.norm == 5.0
    assert errors.relative == pytest.approx(5 / math.sqrt(3))
    assert errors.row_p99 == 4.0


def test_an_error_where_truth_is_zero_is_infinite_and_none_is_zero() -> None:
    truth = torch.zeros(2, 2, dtype=torch.float64)
    exact, wrong = Errors(), Errors()
    exact.add(torch.zeros(2, 2), truth, None)
    wrong.add(torch.ones(2, 2), truth, None)
    assert (exact.relative, exact.ulps, exact.row_p99) == (0.0, 0.0, 0.0)
    assert wrong.relative == math.inf
    assert Errors().row_p99 == 0.0


def test_complex_outputs_are_compared_in_both_parts() -> None:
    truth = torch.tensor([[1 + 2j, 3 - 1j]], dtype=torch.complex128)
    output = truth.to(torch.complex64) + 1j
    errors = Errors()
    errors.add(output, truth, None)
    assert errors.norm == pytest.approx(math.sqrt(2))


def test_ratios_of_zero() -> None:
    assert ratio(0.0, 0.0) == 1.0
    assert ratio(0.0, 1.0) == 0.0
    assert ratio(1.0, 0.0) == math.inf


def test_a_place_is_named_by_its_indices() -> None:
    flags = torch.zeros(3, 4, 5, dtype=torch.bool)
    flags[2, 1, 3] = True
    assert compare.first_place(flags) == "[2, 1, 3]"


def test_digests_and_checksums_see_one_bit_and_the_shape() -> None:
    plain = torch.arange(6.0)
    other = plain.clone()
    other.view(torch.int32)[5] += 1
    assert compare.sha256(plain) != compare.sha256(other)
    assert compare.sha256(plain) != compare.sha256(plain.reshape(2, 3))
    assert compare.fingerprint(plain) != compare.fingerprint(other)
