"""What a comparison takes of the device, before it begins."""

from __future__ import annotations

import pytest

from experiments.plan import make_plan
from experiments.sample_times import SampleTimes, estimate_s, first_look_s, times_of
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.workload import DECODE
from tests.support.stub_workload import STUB

H200 = DeviceFacts("cuda:0", "NVIDIA H200", 150_754_820_096, 132, (9, 0))
COMPILING = SampleTimes(2.0, (50.0, 10.0))


def test_the_device_time_is_estimated_before_the_start() -> None:
    plan = make_plan(1, 9, oracle=True)
    assert estimate_s(plan, SampleTimes(2.0), 3.0, None) == 24 * 2.0 + 3 * 3.0
    assert estimate_s(plan, SampleTimes(2.0), 3.0, 40.0) == 40.0


def test_an_oracle_compiles_once_and_is_counted_once_a_block() -> None:
    plan = make_plan(1, 9, oracle=True)
    assert estimate_s(plan, COMPILING, 0.0, None) == 21 * 2.0 + 50.0 + 2 * 10.0
    assert first_look_s(plan, (6, 9), COMPILING) == 14 * 2.0 + 50.0 + 10.0
    assert estimate_s(make_plan(1, 9), COMPILING, 0.0, None) == 18 * 2.0


def test_a_workload_that_says_nothing_of_its_oracles_has_them_take_as_long_as_an_arm() -> None:
    times = times_of(STUB, STUB.resolve({}, H200), H200, "sdpa")
    assert (times.oracle_s, times.oracles(3)) == (None, 3 * times.arm_s)


def test_the_estimate_of_a_row_of_the_h200_meets_what_was_measured() -> None:
    """Ten samples at 1,560 steps: eager 33 to 36 s, captured 10 to 11, the first oracle 73.5."""
    long = {"round_steps": "127", "ttft_repeats": "32", "ttft_tokens": "2048"}
    eager = DECODE.resolve({"model": "random-0.6b", "graph": "off", **long}, H200)
    times = times_of(DECODE, eager, H200, "transformers:1,32")
    assert times.oracle_s is not None
    assert times.arm_s == pytest.approx(34.0, rel=0.15)
    assert times.oracle_s[0] == pytest.approx(73.5, rel=0.15)
    captured = DECODE.needs(DECODE.resolve({"model": "random-0.6b", **long}, H200), H200)
    assert captured.seconds_per_sample == pytest.approx(10.3, rel=0.15)


def test_an_oracle_at_fewer_concurrencies_takes_less() -> None:
    every, two = (
        times_of(DECODE, DECODE.resolve({"model": "random-0.6b"}, H200), H200, name).oracle_s
        for name in ("transformers", "transformers:1,32")
    )
    assert every is not None
    assert two is not None
    assert all(few < all_of_them / 2 for few, all_of_them in zip(two, every, strict=True))
    assert two[1] < two[0] / 2
