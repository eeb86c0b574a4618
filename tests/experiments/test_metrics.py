from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.metrics import itl_ms, percentile, tail, tokens_per_second, tpot_ms, ttft_ms


def test_ttft_is_the_time_from_arrival_to_the_first_token() -> None:
    assert ttft_ms(10.0, 10.25) == pytest.approx(250.0)


def test_a_token_before_the_request_is_an_error() -> None:
    with pytest.raises(ValueError, match="before the arrival"):
        ttft_ms(10.0, 9.0)


def test_itl_is_each_gap_between_two_tokens() -> None:
    assert itl_ms([1.0, 1.5, 1.75]) == pytest.approx((500.0, 250.0))
    assert itl_ms([1.0]) == ()


def test_times_that_go_backwards_are_an_error() -> None:
    with pytest.raises(ValueError, match="backwards"):
        itl_ms([1.0, 0.5])


def test_tpot_leaves_the_first_token_out() -> None:
    assert tpot_ms(end_to_end_s=2.0, first_token_s=1.0, output_tokens=11) == pytest.approx(100.0)
    with pytest.raises(ValueError, match="no time per output token"):
        tpot_ms(2.0, 1.0, 1)


def test_a_rate_needs_time() -> None:
    assert tokens_per_second(10, 2.0) == 5.0
    with pytest.raises(ValueError, match="no rate"):
        tokens_per_second(10, 0.0)


@pytest.mark.parametrize(("percent", "needed"), [(95, 20), (99, 100)])
def test_a_tail_is_refused_below_the_samples_that_it_needs(percent: int, needed: int) -> None:
    values = [float(i) for i in range(needed)]
    assert percentile(values, percent) <= values[-1]
    with pytest.raises(ValueError, match=f"needs {needed} samples"):
        percentile(values[1:], percent)


def test_with_too_few_samples_the_maximum_is_reported_and_called_so() -> None:
    assert tail([3.0, 1.0, 2.0], 95) == ("max", 3.0)
    assert tail([1.0] * 100, 99) == ("p99", 1.0)
    with pytest.raises(ValueError, match="no values"):
        tail([], 95)


def test_a_percentile_of_nothing_or_beyond_the_scale_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="outside"):
        percentile([1.0], 101)


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=50))
def test_the_median_lies_between_the_extremes_and_scales_with_the_unit(values: list[float]) -> None:
    middle = percentile(values, 50)
    assert min(values) <= middle <= max(values)
    assert percentile([v * 1e3 for v in values], 50) == pytest.approx(middle * 1e3)
