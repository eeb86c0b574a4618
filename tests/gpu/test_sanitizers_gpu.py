"""The second look at doubtful sanitizer reports, at kernels that write with bulk copies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.parity import fresh_memory, memcheck
from experiments.parity.sanitizer_doubts import memory_of
from experiments.parity.sanitizer_tool import find_sanitizer
from experiments.tasks import Task
from levers.kernels.attn_backend_needs import missing_packages

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0),
        reason="needs a device of capability 9.0",
    ),
]

SUBJECTS = (
    pytest.param(
        "attn_backend",
        "fa4",
        marks=pytest.mark.skipif(bool(missing_packages("fa4")), reason="needs flash-attn-4"),
    ),
    ("gemm_epilogue_mlp", "on"),
    ("tuned_gemm", "on"),
    ("fused_modulate", "on"),
)


def task_of(name: str, setting: str) -> Task:
    return Task(
        kind="memcheck",
        arm="cand",
        workload="slat_flow",
        parameters={},
        device="cuda:0",
        seed=3,
        levers=(),
        subject={"lever": name, "setting": setting},
        arguments={"ref": "off"},
    )


def test_planted_reads_of_fresh_memory_are_found() -> None:
    assert fresh_memory.has_power("cuda:0")


@pytest.mark.parametrize(("name", "setting"), SUBJECTS)
def test_no_output_hangs_on_fresh_memory(name: str, setting: str, tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    path.write_text(task_of(name, setting).model_dump_json())
    answer = memory_of(path)
    assert answer is not None
    assert answer.power
    assert answer.faults == ()
    assert answer.capability >= (9, 0)


@pytest.mark.skipif(find_sanitizer() is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize(("name", "setting"), SUBJECTS)
def test_no_tool_reports_a_fault(name: str, setting: str, capsys: pytest.CaptureFixture) -> None:
    found = memcheck.probe(task_of(name, setting), None)
    with capsys.disabled():
        print(f"\n{name}={setting}: {found.status} {found.worst}; {found.detail}; {found.figures}")
    assert found.status == "passed"
