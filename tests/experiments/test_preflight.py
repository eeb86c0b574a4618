from __future__ import annotations

from pathlib import Path

import pytest

from experiments import preflight
from experiments.environment import cpu_device, find_device
from experiments.preflight import Free
from experiments.workloads.base import Needs
from levers.errors import BadParameter
from tests.support.fake_nvml import FakeNvml, Gpu

GB = 10**9
NEEDS = Needs(
    device_memory_bytes=80 * GB, host_memory_bytes=4 * GB, disk_bytes=GB, seconds_per_sample=1
)


def test_a_run_that_fits_is_let_through() -> None:
    preflight.check(NEEDS, Free(10 * GB, 16 * GB, 140 * GB), Path("/home"))
    preflight.check(NEEDS, Free(10 * GB, 16 * GB), Path("/home"))


@pytest.mark.parametrize(
    ("free", "text"),
    [
        (Free(GB // 2, 16 * GB), "1.1 GB of disk at /home, 0.5 GB are free; free space"),
        (Free(10 * GB, 2 * GB), "4.0 GB of host memory, 2.0 GB are free"),
        (Free(10 * GB, 16 * GB, 60 * GB), "80.0 GB of device memory, 60.0 GB are free"),
    ],
)
def test_what_is_short_is_named_with_the_cure(free: Free, text: str) -> None:
    with pytest.raises(BadParameter, match=text):
        preflight.check(NEEDS, free, Path("/home"))


def test_what_is_free_is_read_from_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    free = preflight.free_now(tmp_path / "not" / "yet", cpu_device())
    assert free.disk_bytes > 0
    assert free.host_bytes > 0
    assert free.device_bytes is None


def test_free_device_memory_is_that_of_the_gpu_in_question() -> None:
    nvml = FakeNvml(Gpu("GPU-aa", used_bytes=0), Gpu("GPU-bb", used_bytes=100 << 30))
    device = find_device("cuda:1", nvml)
    assert preflight.free_now(Path("/"), device, nvml).device_bytes == 41 << 30
