from __future__ import annotations

from typing import Any

import pytest

from experiments.conditions import Limits, fault_of, limits_for, lost_cause

GPU: dict[str, Any] = {
    "sm_mhz": 1965.0,
    "sm_max_mhz": 1980,
    "application_mhz": 1980,
    "application_changed": False,
    "throttles": "",
    "busy": True,
    "foreign_processes": 0,
}
GPU_LIMITS = Limits(application_mhz=1980)


def test_an_undisturbed_run_costs_nothing() -> None:
    assert lost_cause(GPU, GPU_LIMITS) == ""
    assert lost_cause({}, Limits()) == ""


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        ({"foreign_processes": 1}, "foreign process: 1"),
        ({"throttles": "hw-thermal"}, "throttled: hw-thermal"),
        ({"throttles": "power-cap sw-thermal"}, "throttled: sw-thermal"),
        ({"application_mhz": 1200}, "application clock changed: 1980 MHz -> 1200 MHz"),
        ({"application_changed": True}, "application clock changed"),
        ({"sm_mhz": 0.59 * 1980}, "throttled: SM clock at 59%"),
    ],
)
def test_what_is_blind_to_the_arm_costs_the_pair(seen: dict[str, Any], cause: str) -> None:
    assert lost_cause({**GPU, **seen}, GPU_LIMITS).startswith(cause)


def test_a_power_cap_belongs_to_the_arm_that_reaches_it() -> None:
    capped = {**GPU, "throttles": "power-cap", "sm_mhz": 0.6 * 1980}
    assert lost_cause(capped, GPU_LIMITS) == ""


def test_an_idle_gpu_may_be_slow() -> None:
    assert lost_cause({**GPU, "busy": False, "sm_mhz": 345.0}, GPU_LIMITS) == ""


def test_a_steady_load_is_not_refused_and_a_new_one_costs_the_pair() -> None:
    limits = limits_for({"foreign_cores": 1.4, "steal_share": 0.1}, cores=2, threads=1)
    assert lost_cause({"foreign_cores": 1.6}, limits) == ""
    assert lost_cause({"foreign_cores": 2.0}, limits).startswith("foreign load: 2.00 cores")
    assert lost_cause({"steal_share": 0.4}, limits).startswith("steal: 0.40")


def test_a_core_that_the_run_leaves_free_may_be_used() -> None:
    limits = limits_for({"foreign_cores": 0.0}, cores=2, threads=1)
    assert lost_cause({"foreign_cores": 1.3}, limits) == ""
    assert lost_cause({"foreign_cores": 1.6}, limits) != ""
    all_cores = limits_for({"foreign_cores": 0.0}, cores=2, threads=None)
    assert lost_cause({"foreign_cores": 0.6}, all_cores) != ""


def test_a_cause_names_the_fault_that_ends_a_run() -> None:
    assert fault_of("throttled: hw-thermal") == "throttled"
    assert fault_of("application clock changed: 1 MHz -> 2 MHz") == "throttled"
    assert fault_of("foreign process: 1 on the device") == "device-busy"


def test_infinite_limits_are_not_written() -> None:
    assert Limits().as_note() == {"application_mhz": 0, "low_clock": 0.7}
