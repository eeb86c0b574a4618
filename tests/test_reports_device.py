"""Public fault reports about clocks, foreign work and other processes on the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.conditions import Limits
from experiments.exit_codes import Exit, exit_code
from experiments.records import Decision, Outcome
from experiments.replay import decide_again
from experiments.run_record import RunRecord
from experiments.stats import paired
from experiments.tasks import Task
from experiments.telemetry_cuda import CudaProbe
from experiments.values import Scalar
from tests.experiments.test_runner import Sitting
from tests.support import runs
from tests.support.fake_nvml import FakeNvml, Gpu

ME = (os.getpid(),)
STRAY = 999_999


def seen_on(gpu: Gpu, during: Callable[[Gpu], Any] = lambda gpu: None) -> Mapping[str, Scalar]:
    """The telemetry of one process: ``during`` happens between its first and last reading."""
    probe = CudaProbe(gpu.uuid, FakeNvml(Gpu("GPU-other", utilisation=0), gpu))
    probe.begin(ME)
    during(gpu)
    probe.read(ME)
    return probe.end(ME)


def run_with(
    folder: Path, telemetry: Callable[[Task], Mapping[str, Scalar]], **changes: Any
) -> tuple[RunRecord, Sitting]:
    sitting = Sitting(folder, runs.spec(looks=(6,)))
    sitting.executor.telemetry = telemetry
    return sitting.collect(**changes)[1], sitting


def verdict(record: RunRecord) -> tuple[Decision, Exit]:
    decision = decide_again(record)
    return decision, exit_code(decision.outcome)


# https://github.com/NVIDIA/nvbench/issues/231
def test_a_clock_stuck_at_59_percent_ends_the_run_as_invalid_and_in_bounded_time(
    tmp_path: Path,
) -> None:
    stuck = seen_on(Gpu("GPU-a", sm_mhz=int(0.59 * 1980)))
    record, sitting = run_with(tmp_path, lambda _: stuck, watch=lambda _: {"busy": False})
    decision, code = verdict(record)
    assert (decision.outcome, decision.reason) == (Outcome.INVALID, "throttled")
    assert code is Exit.INVALID
    assert "59%" in decision.detail
    assert sitting.clock.now < 60


# https://github.com/flashinfer-ai/flashinfer/pull/2899
def test_a_clock_that_falls_with_heat_in_one_arm_is_invalid_and_both_clocks_are_logged(
    tmp_path: Path,
) -> None:
    def telemetry(task: Task) -> Mapping[str, Scalar]:
        hot = task.arm == "cand"
        return seen_on(Gpu("GPU-a", sm_mhz=1965), fall if hot else lambda gpu: None)

    def fall(gpu: Gpu) -> None:
        gpu.sm_mhz, gpu.throttles = 1580, 0x20

    record, _ = run_with(tmp_path, telemetry)
    decision, code = verdict(record)
    assert (decision.outcome, code) == (Outcome.INVALID, Exit.INVALID)
    assert {one.arm for one in record.lost} == {"cand"}
    by_arm = {sample.arm: sample.telemetry for sample in record.samples}
    assert by_arm["ref"]["sm_mhz"] == 1965
    assert by_arm["cand"]["sm_min_mhz"] == 1580
    assert by_arm["cand"]["throttles"] == "sw-thermal"


# https://github.com/flashinfer-ai/flashinfer/pull/2899
def test_a_power_cap_that_an_arm_reaches_is_its_own_and_stands_in_its_samples(
    tmp_path: Path,
) -> None:
    def capped(gpu: Gpu) -> None:
        gpu.sm_mhz, gpu.throttles = 1580, 0x4

    record, _ = run_with(
        tmp_path,
        lambda task: seen_on(
            Gpu("GPU-a", sm_mhz=1965), capped if task.arm == "cand" else lambda gpu: None
        ),
    )
    assert record.lost == ()
    assert {s.telemetry["throttles"] for s in record.samples if s.arm == "cand"} == {"power-cap"}


# https://github.com/raullenchai/Rapid-MLX/issues/1527
@pytest.mark.parametrize("work", [{"foreign_processes": 1}, {"foreign_cores": 1.9}])
def test_work_of_others_during_one_arm_costs_its_pair_which_is_measured_again(
    tmp_path: Path, work: dict[str, Scalar]
) -> None:
    record, _ = run_with(
        tmp_path,
        lambda task: work if (task.pair, task.arm) == (2, "cand") else {},
        limits=Limits(foreign_cores=0.5),
    )
    assert [(one.pair, one.arm) for one in record.lost] == [(2, "cand")]
    assert record.lost[0].cause.startswith("foreign")
    assert len(paired(record.samples, record.lost)) == 6


# https://github.com/paiml/aprender/issues/3909
def test_a_stray_process_that_took_no_lock_is_seen_and_ends_the_run_as_busy(
    tmp_path: Path,
) -> None:
    def arrives(gpu: Gpu) -> None:
        gpu.processes.append(STRAY)

    shared = Gpu("GPU-a", processes=[*ME])
    record, _ = run_with(
        tmp_path,
        lambda task: seen_on(Gpu("GPU-a", processes=[*ME]), arrives) if task.pair else {},
        watch=lambda _: seen_on(shared),
    )
    decision, code = verdict(record)
    assert (decision.outcome, decision.reason) == (Outcome.INVALID, "device-busy")
    assert code is Exit.INVALID
    assert "foreign process: 1" in decision.detail


# https://github.com/dudarenok-maker/Castwright/pull/2189
def test_the_second_of_two_gpus_is_watched_where_the_run_is_pinned_to_it() -> None:
    first, second = Gpu("GPU-0", utilisation=0), Gpu("GPU-1", utilisation=91)
    second.processes.extend([STRAY, *ME])
    nvml = FakeNvml(first, second)
    found = {}
    for gpu in (first, second):
        probe = CudaProbe(gpu.uuid, nvml)
        probe.begin(ME)
        found[gpu.uuid] = probe.end(ME)["foreign_processes"]
    assert found == {"GPU-0": 0, "GPU-1": 1}
