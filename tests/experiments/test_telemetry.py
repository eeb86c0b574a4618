from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from experiments import telemetry_cpu, telemetry_cuda
from experiments.environment import cpu_device
from experiments.telemetry import Sampler, probe_for
from experiments.telemetry_cpu import CpuProbe, Reading
from experiments.telemetry_cuda import CudaProbe, foreign
from tests.support.fake_nvml import FakeNvml, Gpu

ME = (os.getpid(),)


def test_a_busy_neighbour_is_told_from_the_measured_gpu() -> None:
    busy = Gpu("GPU-bb", utilisation=91, processes=[999_999, *ME])
    nvml = FakeNvml(Gpu("GPU-aa", utilisation=0), busy)
    idle, shared = CudaProbe("GPU-aa", nvml), CudaProbe("GPU-bb", nvml)
    for probe in (idle, shared):
        probe.begin(ME)
    assert idle.end(ME)["foreign_processes"] == 0
    assert shared.end(ME)["foreign_processes"] == 1


def test_a_clock_that_falls_and_its_reasons_are_in_the_summary() -> None:
    gpu = Gpu("GPU-aa", sm_mhz=1965, max_mhz=1980)
    probe = CudaProbe("GPU-aa", FakeNvml(gpu))
    probe.begin(ME)
    gpu.sm_mhz, gpu.throttles = 1580, 0x4 | 0x40
    seen = probe.end(ME)
    assert seen["sm_min_mhz"] == 1580
    assert seen["sm_mhz"] == pytest.approx(1772.5)
    assert seen["throttles"] == "power-cap hw-thermal"


def test_a_changed_application_clock_is_seen() -> None:
    gpu = Gpu("GPU-aa")
    probe = CudaProbe("GPU-aa", FakeNvml(gpu))
    probe.begin(ME)
    gpu.application_mhz = 1200
    assert probe.end(ME)["application_changed"] is True


def test_a_process_that_came_and_went_between_begin_and_end_is_seen() -> None:
    gpu = Gpu("GPU-aa", processes=[*ME])
    probe = CudaProbe("GPU-aa", FakeNvml(gpu))
    probe.begin(ME)
    gpu.processes.append(999_999)
    probe.read(ME)
    gpu.processes.remove(999_999)
    assert probe.end(ME)["foreign_processes"] == 1


def test_where_ids_are_the_hosts_one_unknown_process_is_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = CudaProbe("GPU-aa", FakeNvml(Gpu("GPU-aa", processes=[7001])))
    reading = probe.now()
    monkeypatch.setattr(telemetry_cuda, "_ids_agree", lambda: False)
    assert foreign([reading], {5}) == 0
    two = CudaProbe("GPU-aa", FakeNvml(Gpu("GPU-aa", processes=[7001, 7002]))).now()
    assert foreign([reading, two], {5}) == 1
    monkeypatch.setattr(telemetry_cuda, "_ids_agree", lambda: True)
    assert foreign([reading], {5}) == 1


def test_while_nothing_is_measured_a_process_under_any_id_is_foreign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry_cuda, "_ids_agree", lambda: False)
    gpu = Gpu("GPU-aa", processes=[7001])
    probe = CudaProbe("GPU-aa", FakeNvml(gpu))
    with Sampler(probe, period_s=0) as sampler:
        assert sampler.look(lambda: ME, 0.01)["foreign_processes"] == 1
        probe.begin(ME, idle=True)
        gpu.processes.clear()
        assert probe.end(ME)["foreign_processes"] == 0, "one that just ended is not foreign"
        gpu.processes.append(7001)
        sampler.begin(lambda: ME)
        assert sampler.end()["foreign_processes"] == 0


def test_the_sampler_reads_from_a_thread_while_a_process_runs() -> None:
    gpu = Gpu("GPU-aa", processes=[*ME])
    with Sampler(CudaProbe("GPU-aa", FakeNvml(gpu)), period_s=0.01) as sampler:
        sampler.begin(lambda: ME)
        time.sleep(0.1)
        seen = sampler.end()
    assert isinstance(seen["readings"], int)
    assert seen["readings"] > 4


def proc(folder: Path, busy: int, steal: int, own: tuple[int, int]) -> None:
    """A ``/proc`` with this many ticks of work, of steal, and of process 42 and its children."""
    (folder / "42").mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu  {busy} 0 0 500 0 0 0 {steal} 0 0\ncpu0 1 2 3\n")
    fields = " ".join(["S", "1", *["0"] * 9, str(own[0]), "0", str(own[1]), "0", "20"])
    (folder / "42" / "stat").write_text(f"42 (a (b) c) {fields}\n")
    (folder / "cpuinfo").write_text("processor\t: 0\ncpu MHz\t\t: 2000.0\ncpu MHz\t\t: 3000.0\n")


def test_the_load_of_others_is_all_work_without_ours(tmp_path: Path) -> None:
    proc(tmp_path, busy=1000, steal=10, own=(100, 200))
    probe = CpuProbe(tmp_path)
    first = probe.now((42,))
    proc(tmp_path, busy=1400, steal=60, own=(150, 350))
    last = probe.now((42,))
    two_seconds = Reading(first.at_s + 2, last.busy_s, last.steal_s, last.own_s)
    seen = telemetry_cpu.summary(first, two_seconds)
    assert seen["foreign_cores"] == pytest.approx(1.0)
    assert seen["steal_share"] == pytest.approx(0.25)


def test_the_frequency_is_the_mean_of_the_processors(tmp_path: Path) -> None:
    proc(tmp_path, 1, 1, (1, 1))
    assert telemetry_cpu.mean_mhz(tmp_path) == 2500


def test_the_processor_time_of_this_process_counts_as_ours() -> None:
    probe = CpuProbe()
    first, start_s = probe.now(ME), time.process_time()
    while time.process_time() - start_s < 0.3:
        pass
    assert probe.now(ME).own_s - first.own_s == pytest.approx(0.3, abs=0.1)


def test_a_look_at_the_host_gives_load_and_steal() -> None:
    with Sampler(probe_for(cpu_device()), period_s=0.05) as sampler:
        seen = sampler.look(lambda: ME, 0.2)
    assert set(seen) >= {"foreign_cores", "steal_share"}
