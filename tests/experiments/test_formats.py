from __future__ import annotations

import math

import pytest

from experiments import formats


@pytest.mark.parametrize(
    ("log_ratio", "shown"),
    [
        (math.log(1.123), "+12.3"),
        (math.log(2.10), "+110.0"),
        (math.log(1.0034), "+0.34"),
        (math.log(0.98), "-2.0"),
        (0.0, "+0.00"),
        (math.inf, "+inf"),
    ],
)
def test_a_log_ratio_is_shown_as_percent(log_ratio, shown):
    assert formats.percent(log_ratio) == shown


def test_an_interval_has_the_digits_of_its_estimate():
    small = [math.log1p(x / 100) for x in (0.34, 0.11, 0.58)]
    assert formats.effect(*small) == "+0.34 % [0.11, 0.58]"
    large = [math.log1p(x / 100) for x in (12.3, 9.82, 14.9)]
    assert formats.effect(*large) == "+12.3 % [9.8, 14.9]"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.03, "0.0 s"), (9.4, "9.4 s"), (42, "42 s"), (185, "3 min 05 s"), (4800, "1 h 20 min")],
)
def test_a_duration_is_shown_in_the_unit_that_fits(seconds, shown):
    assert formats.duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (245.13, "tok/s", "245.1 tok/s"),
        (1377.4, "tok/s", "1,377 tok/s"),
        (0.04567, "ms", "0.04567 ms"),
        (2.63 * 2**30, "bytes", "2.63 GiB"),
        (0.0, "ms", "0 ms"),
        (512, "bytes", "512 B"),
    ],
)
def test_a_quantity_has_four_digits_and_its_unit(value, unit, shown):
    assert formats.quantity(value, unit) == shown


def test_a_margin_is_shown_as_policies_state_it():
    assert formats.margin(0.01) == "1 %"
    assert formats.margin(0.005) == "0.5 %"


def test_the_median_of_an_even_number_lies_between():
    assert formats.median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_a_moment_that_cannot_be_read_is_shown_as_it_is():
    assert formats.day("yesterday") == "yesterday"


def test_a_long_text_keeps_both_its_ends():
    assert formats.shortened("sdpa") == "sdpa"
    found = formats.shortened("server:/opt/python -m some.server --model {model} --port {port}")
    assert found == "server:/opt/python -m ... --port {port}"
    assert len(found) <= 40
