"""The oracle server in a measured process: a mode, a crash and a hang, and nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from support import runs

from experiments.environment import cpu_device
from experiments.executor import Executor
from experiments.frozen import frozen_environment
from experiments.oracle_facts import ORACLE_MODE_FACT
from experiments.workloads.decode.workload import DECODE
from tests.experiments.workloads.test_decode_oracle_server import command, parameters


@pytest.mark.parametrize(
    ("fault", "failure", "said"),
    [
        ("hits", None, "prefix cache that hit 50% of the prompt tokens"),
        ("miscount", "crashed", "usage says"),
        ("hang", "hung", "did not end within 6 s"),
    ],
)
def test_in_a_measured_process_each_end_is_an_outcome_and_no_server_is_left(
    fault: str, failure: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    text = command(tmp_path, monkeypatch, "--fault", fault, "--child", str(child), "--step-ms", "1")
    spec = runs.spec("fa2_nsplits_cap", "auto", workload="decode", parameters=parameters())
    frozen = frozen_environment(
        spec,
        cpu_device(),
        DECODE.opener,
        environ=dict(os.environ),
        free_memory_bytes=8 << 30,
        cores=os.sched_getaffinity(0),
    )
    task = runs.task(spec, arm="oracle", implementation=f"oracle:{text}", levers=())
    with Executor(frozen, tmp_path / "work") as executor:
        limit_s = 6.0 if fault == "hang" else 60.0
        result = executor.run(task, timeout_s=limit_s).result
    mode = str(result.measurement.facts[ORACLE_MODE_FACT]) if result.measurement else ""
    assert result.failure == failure
    assert said in f"{mode} {result.message}"
    number = int(child.read_text())
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == "zombie"
