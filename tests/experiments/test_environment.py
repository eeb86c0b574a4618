from __future__ import annotations

import os
import sys

import pytest

from experiments import environment
from levers.errors import BadParameter
from tests.support import runs
from tests.support.fake_nvml import FakeNvml, Gpu

TWO = FakeNvml(Gpu("GPU-aa"), Gpu("GPU-bb", name="NVIDIA H100"))
NO_DRIVER = FakeNvml(driver=False)


def test_without_a_driver_the_cpu_is_the_device() -> None:
    found = environment.find_device(None, NO_DRIVER)
    assert found.facts.device == "cpu"
    assert found.facts.kind
    assert found.facts.memory_bytes > 0


def test_a_gpu_is_found_by_index_and_by_uuid() -> None:
    assert environment.find_device("cuda", TWO).uuid == "GPU-aa"
    assert environment.find_device("cuda:1", TWO).uuid == "GPU-bb"
    by_uuid = environment.find_device("GPU-bb", TWO)
    assert by_uuid.facts.device == "cuda:1"
    assert by_uuid.facts.sm_count == 132
    assert by_uuid.facts.compute_capability == (9, 0)


def test_cuda_indices_count_the_visible_devices() -> None:
    found = environment.find_device("cuda:0", TWO, visible="1")
    assert found.uuid == "GPU-bb"
    with pytest.raises(BadParameter):
        environment.find_device("cuda:1", TWO, visible="GPU-bb")


def test_an_unknown_device_names_those_that_were_found() -> None:
    with pytest.raises(BadParameter, match=r"found: cpu, cuda:0 \(NVIDIA H200\), cuda:1"):
        environment.find_device("cuda:7", TWO)
    with pytest.raises(BadParameter, match=r"found: cpu$"):
        environment.find_device("cuda", NO_DRIVER)


def test_the_record_says_where_and_with_what(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.use_stub(monkeypatch)
    gpu = environment.find_device("cuda:1", TWO)
    record = environment.describe(gpu, {"OMP_NUM_THREADS": "1"}, {"TORCH_X": "1"}, {"threads": 1})
    assert record.device_kind == "NVIDIA H100"
    assert record.versions["driver"] == "580.1"
    assert record.versions["torch"]
    assert record.boot_id
    assert record.commit
    assert record.facts["threads"] == 1


def test_describing_imports_no_torch() -> None:
    import subprocess

    code = (
        "import sys; from experiments import environment as e; d = e.find_device('cpu');"
        "e.describe(d, {}, {}, {}); sys.exit('torch' in sys.modules or 'mlflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=dict(os.environ))
