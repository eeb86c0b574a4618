from __future__ import annotations

from pathlib import Path

import pytest

from experiments.environment import Device
from experiments.spec import LeverSetting
from experiments.workloads.base import DIGESTS_VARIABLE, DeviceFacts
from tests.support import runs


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.use_stub(monkeypatch)


SHELL = {
    "PATH": "/bin",
    "LEVER_PLANTED_SAME": "on",
    "LEVERGATE_LEVERS": "folder",
    "MLFLOW_RUN_ID": "abc",
    "MLFLOW_TRACKING_PASSWORD": "hunter2",
    "NVIDIA_TF32_OVERRIDE": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "OMP_NUM_THREADS": "7",
    "TRITON_PTXAS_PATH": "/opt/ptxas",
}


def test_switches_of_the_users_shell_are_removed_and_recorded() -> None:
    frozen = runs.frozen(runs.spec(), environ=SHELL)
    assert "LEVER_PLANTED_SAME" not in frozen.variables
    assert frozen.removed["LEVER_PLANTED_SAME"] == "on"
    assert frozen.removed["NVIDIA_TF32_OVERRIDE"] == "1"
    assert "MLFLOW_RUN_ID" not in frozen.variables
    assert frozen.variables["LEVERGATE_LEVERS"] == "folder"
    assert frozen.variables["TRITON_PTXAS_PATH"] == "/opt/ptxas"


def test_what_keeps_nvlink_multicast_off_is_never_dropped() -> None:
    off = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    frozen = runs.frozen(runs.spec(), environ={**SHELL, **off, "NCCL_DEBUG": "INFO"})
    assert off.items() <= frozen.variables.items()
    assert "NCCL_DEBUG" not in frozen.variables


def test_each_arms_switch_is_recorded_as_resolved() -> None:
    frozen = runs.frozen(runs.spec(), environ=SHELL)
    assert frozen.arms["ref"]["LEVER_PLANTED_SAME"] == "off"
    assert frozen.arms["cand"]["LEVER_PLANTED_SAME"] == "on"
    assert frozen.facts()["ref.LEVER_PLANTED_SAME"] == "off"


def test_no_secret_reaches_a_record() -> None:
    frozen = runs.frozen(runs.spec(), environ={**SHELL, "HF_TOKEN": "hf_x"})
    recorded = {**frozen.recorded(), **frozen.removed}
    assert "hunter2" not in recorded.values()
    assert "hf_x" not in recorded.values()


def test_a_declared_variable_is_kept_and_said() -> None:
    frozen = runs.frozen(runs.spec(), environ=SHELL, declared=("PYTORCH_CUDA_ALLOC_CONF",))
    assert frozen.variables["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert frozen.recorded()["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert frozen.facts()["declared_variables"] == "PYTORCH_CUDA_ALLOC_CONF"


def test_threads_are_fixed_before_any_import() -> None:
    frozen = runs.frozen(runs.spec(), environ=SHELL)
    assert frozen.variables["OMP_NUM_THREADS"] == "1"
    assert frozen.variables["MKL_NUM_THREADS"] == "1"
    assert frozen.variables["PYTHONHASHSEED"] == "0"


def test_a_single_thread_gets_a_core_that_the_parent_leaves_alone() -> None:
    frozen = runs.frozen(runs.spec(), cores={0, 1, 2})
    assert frozen.measured_core == 2
    assert frozen.other_cores == (0, 1)
    assert runs.frozen(runs.spec(), cores={0}).measured_core is None


def test_a_gpu_is_selected_by_its_uuid() -> None:
    from experiments.frozen import frozen_environment

    gpu = Device(DeviceFacts("cuda:1", "H200", 1 << 37), "GPU-bb")
    spec = runs.spec(device="cuda:1")
    frozen = frozen_environment(
        spec, gpu, "m:f", environ=SHELL, free_memory_bytes=1 << 34, cores={0, 1}
    )
    assert frozen.variables["CUDA_VISIBLE_DEVICES"] == "GPU-bb"
    assert frozen.memory_limit_bytes is None
    assert frozen.threads is None


def test_an_arms_process_gets_its_own_switch_and_no_other() -> None:
    spec = runs.spec()
    frozen = runs.frozen(spec)
    assert frozen.additions(runs.task(spec)) == {"LEVER_PLANTED_SAME": "on"}
    assert frozen.additions(runs.task(spec, arm="ref")) == {}
    off = (LeverSetting(lever="planted_same", setting="off"),)
    assert frozen.additions(runs.task(spec, levers=off)) == {"LEVER_PLANTED_SAME": "off"}


def test_compile_caches_are_apart_for_each_set_of_levers(tmp_path: Path) -> None:
    spec = runs.spec()
    frozen = runs.frozen(spec, arm_caches=tmp_path)
    ref = frozen.additions(runs.task(spec, arm="ref"))["TRITON_CACHE_DIR"]
    cand = frozen.additions(runs.task(spec))["TRITON_CACHE_DIR"]
    assert ref != cand
    assert ref.startswith(str(tmp_path))


def test_an_oracle_has_a_compile_cache_of_its_own_at_any_concurrency(tmp_path: Path) -> None:
    spec = runs.spec()
    frozen = runs.frozen(spec, arm_caches=tmp_path / "arms")
    digests = {
        frozen.additions(runs.task(spec, arm=arm))[DIGESTS_VARIABLE] for arm in ("ref", "cand")
    }
    assert digests == {str(tmp_path / "digests")}
    ref = frozen.additions(runs.task(spec, arm="ref"))["TORCHINDUCTOR_CACHE_DIR"]

    def cache(oracle: str) -> str:
        task = runs.task(spec, arm="oracle", levers=())
        asked = task.model_copy(update={"implementation": f"oracle:{oracle}"})
        return frozen.additions(asked)["TORCHINDUCTOR_CACHE_DIR"]

    assert cache("transformers") == cache("transformers:1,32") != cache("sdpa")
    assert cache("transformers").startswith(str(tmp_path / "oracles"))
    assert ref.startswith(str(tmp_path / "arms"))


def test_a_lever_that_acts_at_import_time_needs_fresh_interpreters() -> None:
    assert runs.frozen(runs.spec()).fresh_interpreter == ""
    assert "at import time" in runs.frozen(runs.spec("planted_at_import")).fresh_interpreter
