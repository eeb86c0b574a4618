"""From ``--ranks`` to devices, locks, needs and the scope."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from experiments import locks, preflight, prepare
from experiments.environment import MOST_CPU_RANKS, cpu_device, describe, find_device
from experiments.frozen import frozen_environment
from experiments.locks import DeviceBusy
from experiments.ranks.needs import needs_of, with_ranks
from experiments.ranks.telemetry import together
from experiments.requests import AbRequest
from experiments.spec import AbSpec
from experiments.workloads.base import DeviceFacts, Needs
from levers.errors import BadParameter
from tests.support import runs
from tests.support.fake_nvml import FakeNvml, Gpu
from tests.support.ranked_workload import RANKED
from tests.support.stub_workload import STUB

CPU = DeviceFacts("cpu", "a CPU", 8 << 30)
GPU = DeviceFacts("cuda:0", "NVIDIA H200", 140 << 30)


@pytest.fixture
def _ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_WORKLOADS", "ranked=tests.support.ranked_workload:RANKED")


def spec(ranks: int) -> AbSpec:
    request = AbRequest("planted_rank", cand="on", workload="ranked", ranks=ranks)
    return prepare.compare(request, cpu_device()).spec


@pytest.mark.usefixtures("_ranked")
def test_the_number_of_ranks_belongs_to_the_scope_and_one_is_not_named() -> None:
    assert spec(4).ranks == 4
    assert spec(4).parameters["ranks"] == 4
    assert spec(1).ranks == 1
    assert "ranks" not in spec(1).parameters


@pytest.mark.usefixtures("_ranked")
def test_ranks_take_no_turns_with_those_of_the_other_arm() -> None:
    assert spec(1).interleaved
    assert not spec(2).interleaved


def test_a_workload_for_one_process_refuses_ranks() -> None:
    with pytest.raises(BadParameter, match="stub cannot run on several ranks"):
        with_ranks(STUB, {}, 2)
    with pytest.raises(BadParameter, match="0 ranks"):
        with_ranks(RANKED, {}, 0)


def test_too_many_ranks_for_a_cpu_are_refused_with_the_cure() -> None:
    with pytest.raises(BadParameter, match="cannot share one CPU") as refused:
        find_device("cpu", ranks=MOST_CPU_RANKS + 1)
    assert f"--ranks {MOST_CPU_RANKS}" in refused.value.cure
    assert find_device("cpu", ranks=4).uuids == (cpu_device().uuid,)


def test_each_rank_takes_a_gpu_from_the_named_one_on() -> None:
    nvml = FakeNvml(*map(Gpu, ("GPU-a", "GPU-b", "GPU-c")))
    assert find_device("cuda:0", nvml, ranks=3).uuids == ("GPU-a", "GPU-b", "GPU-c")
    assert find_device("cuda:1", nvml, ranks=2).uuids == ("GPU-b", "GPU-c")
    assert find_device("cuda", nvml, ranks=1).uuids == ("GPU-a",)


def test_too_few_gpus_are_refused_with_the_cure() -> None:
    nvml = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b"))
    with pytest.raises(BadParameter, match="need 4 GPUs from cuda:0 on, found 2") as refused:
        find_device("cuda", nvml, ranks=4)
    assert "--ranks 2" in refused.value.cure


def test_ranks_on_different_kinds_of_gpus_are_refused() -> None:
    nvml = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", name="NVIDIA A100"))
    with pytest.raises(BadParameter, match="cuda:1 is a NVIDIA A100, cuda:0 a NVIDIA H200"):
        find_device("cuda", nvml, ranks=2)


def test_a_group_has_as_much_free_memory_as_its_fullest_device(tmp_path: Path) -> None:
    nvml = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", used_bytes=100 << 30))
    device = find_device("cuda", nvml, ranks=2)
    assert preflight.free_now(tmp_path, device, nvml).device_bytes == 41 << 30


@pytest.mark.usefixtures("_ranked")
def test_all_devices_of_a_group_are_visible_and_recorded() -> None:
    device = find_device("cuda", FakeNvml(Gpu("GPU-a"), Gpu("GPU-b")), ranks=2)
    of = runs.spec(device="cuda:0", parameters={"ranks": 2})
    frozen = frozen_environment(
        of, device, "m:f", environ={}, free_memory_bytes=1 << 30, cores=[0, 1]
    )
    assert frozen.variables["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert frozen.ranks == 2
    assert describe(device, {}, {}, {}).facts["devices"] == "GPU-a GPU-b"


@pytest.mark.usefixtures("_ranked")
def test_what_keeps_multicast_off_reaches_every_rank() -> None:
    off = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    frozen = frozen_environment(
        runs.spec(parameters={"ranks": 2}),
        cpu_device(),
        "m:f",
        environ={**off, "NCCL_ALGO": "Ring"},
        free_memory_bytes=1 << 30,
        cores=[0, 1],
    )
    assert {name: frozen.variables[name] for name in off} == off
    assert "NCCL_ALGO" not in frozen.variables


@pytest.mark.usefixtures("_ranked")
def test_ranks_on_a_cpu_are_not_pinned_to_one_core_and_share_the_memory() -> None:
    def frozen(ranks: int) -> Any:
        of = runs.spec(parameters={"threads": 1, "ranks": ranks})
        return frozen_environment(
            of, cpu_device(), "m:f", environ={}, free_memory_bytes=1 << 30, cores=[0, 1]
        )

    assert frozen(1).measured_core == 1
    assert frozen(2).measured_core is None
    assert frozen(2).memory_limit_bytes == frozen(1).memory_limit_bytes // 2


class Counted:
    name = "counted"

    def needs(self, parameters: Any, device: DeviceFacts) -> Needs:
        return Needs(10, 20, 30, 2.0)


def test_a_group_needs_each_devices_memory_and_all_of_the_hosts() -> None:
    workload: Any = Counted()
    one = needs_of(workload, {}, GPU)
    group = needs_of(workload, {"ranks": 4}, GPU)
    assert (one.device_memory_bytes, one.host_memory_bytes) == (10, 20)
    assert (group.device_memory_bytes, group.host_memory_bytes) == (10, 80)
    crowded = needs_of(workload, {"ranks": 4, "threads": 1}, CPU, cores=2)
    assert crowded.seconds_per_sample == 4.0
    engine = needs_of(workload, {"ranks": 4, "zero": "deepspeed"}, GPU)
    assert engine.seconds_per_sample > group.seconds_per_sample


def test_all_devices_are_held_or_none(tmp_path: Path) -> None:
    held = {"now": "2026-01-01", "wait_s": 0.0}
    with (
        locks.device(tmp_path, "GPU-b", "other", **held),
        pytest.raises(DeviceBusy, match="held by other"),
        locks.devices(tmp_path, ("GPU-a", "GPU-b"), "ab", **held),
    ):
        pytest.fail("one device is held by another run")
    with locks.devices(tmp_path, ("GPU-b", "GPU-a"), "ab", **held):
        pass


def test_two_groups_that_share_devices_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    done: list[str] = []

    def hold(*uuids: str) -> None:
        for _ in range(3):
            with locks.devices(tmp_path, uuids, " ".join(uuids), now="2026-01-01"):
                done.append(uuids[0])

    threads = [
        threading.Thread(target=hold, args=("GPU-a", "GPU-b"), daemon=True),
        threading.Thread(target=hold, args=("GPU-b", "GPU-a"), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert sorted(done) == ["GPU-a"] * 3 + ["GPU-b"] * 3


def test_telemetry_of_a_group_is_the_worst_of_each_device() -> None:
    one = {"sm_mhz": 1980.0, "temperature_c": 50, "throttles": "", "foreign_processes": 0}
    other = {
        "sm_mhz": 1500.0,
        "temperature_c": 70,
        "throttles": "hw-thermal",
        "foreign_processes": 1,
    }
    more = [
        {**one, "busy": True, "application_mhz": 1980},
        {**other, "busy": False, "application_mhz": 1980},
    ]
    assert together(more) == {
        "sm_mhz": 1500.0,
        "temperature_c": 70,
        "throttles": "hw-thermal",
        "foreign_processes": 1,
        "busy": True,
        "application_mhz": 1980,
    }
    assert together([{"application_mhz": 1}, {"application_mhz": 2}])["application_changed"]
