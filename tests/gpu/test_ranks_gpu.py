"""Several ranks on several GPUs: NCCL, DDP and ZeRO-1 around the training step."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks import failing_rank
from experiments.environment import find_device
from experiments.executor import Executor
from experiments.frozen import frozen_environment
from experiments.ranks.needs import with_ranks
from experiments.spec import NO_LEVER, AbSpec, LeverSetting
from experiments.tasks import Task, TaskResult
from experiments.workloads import catalog
from levers.policy import GatingPolicy

RANKS = 2

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two CUDA devices"),
]

SHORT = {"size": "xl", "depth": "2", "bs": "2", "steps": "3", "warmup": "2", "optimizer": "adamw"}


def spec(ranks: int = RANKS, **more: str) -> AbSpec:
    workload, device = catalog.get("slat_flow"), find_device("cuda", ranks=ranks)
    parameters = with_ranks(workload, workload.resolve({**SHORT, **more}, device.facts), ranks)
    return AbSpec(
        lever=NO_LEVER,
        ref="off",
        cand="off",
        workload="slat_flow",
        parameters=dict(parameters),
        device=device.facts.device,
        seed=3,
        policy=GatingPolicy(primaries=("*",)),
    )


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    levers = tmp_path_factory.mktemp("levers")
    failing_rank.plugin(levers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVERGATE_LEVERS", str(levers))
        of = spec()
        frozen = frozen_environment(
            of,
            find_device("cuda", ranks=RANKS),
            catalog.get("slat_flow").opener,
            environ=dict(os.environ),
            free_memory_bytes=8 << 30,
            cores=os.sched_getaffinity(0),
        )
        with Executor(frozen, Path(tmp_path_factory.mktemp("work")), time_limit_s=180) as executor:
            yield executor


def run(executor: Executor, of: AbSpec, levers: tuple[LeverSetting, ...] = ()) -> TaskResult:
    values: dict[str, Any] = {
        "kind": "measure",
        "arm": "cand",
        "workload": of.workload,
        "parameters": of.parameters,
        "device": of.device,
        "seed": of.seed,
        "levers": levers,
    }
    return executor.run(Task.model_validate(values)).result


def test_two_gpus_train_together_and_agree_to_the_bit(executor: Executor) -> None:
    result = run(executor, spec())
    assert result.failure is None, f"{result.message}\n{result.traceback}"
    assert result.disagreements == ()
    assert result.left_changed == ()
    assert result.measurement is not None
    facts = result.measurement.facts
    print(f"\n{dict(result.measurement.values)}\n{dict(facts)}")
    assert facts["rank0.memory/peak_bytes"] != 0
    assert 0 <= float(str(facts["communication_share"])) < 1


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
)
def test_two_gpus_train_alike_under_deepspeed(executor: Executor) -> None:
    """Autocast holds inside the engine: without it, bf16 flash attention would refuse fp32."""
    ways = [run(executor, spec(zero=way)) for way in ("torch", "deepspeed")]
    for result in ways:
        assert result.failure is None, f"{result.message}\n{result.traceback}"
        assert result.disagreements == ()
        assert result.left_changed == ()
    torchs, mine = (result.measurement for result in ways)
    assert torchs is not None
    assert mine is not None
    print(f"\n{dict(torchs.values)}\n{dict(mine.values)}\n{dict(mine.facts)}")
    assert mine.raw["loss"] == pytest.approx(torchs.raw["loss"], rel=1e-3)


def test_zero1_leaves_each_gpu_less_than_one_alone_holds(executor: Executor) -> None:
    together, alone = run(executor, spec()), run(executor, spec(1))
    assert together.measurement is not None
    assert alone.measurement is not None
    peaks = [
        one.measurement.values["memory/peak_bytes"] for one in (together, alone) if one.measurement
    ]
    print(f"\npeak of a rank {peaks[0] / 1e9:.2f} GB, alone {peaks[1] / 1e9:.2f} GB")
    assert peaks[0] < 1.15 * peaks[1]


def test_a_rank_that_fails_on_a_gpu_is_named_and_nothing_is_left(executor: Executor) -> None:
    levers = (LeverSetting(lever=failing_rank.NAME, setting="on"),)
    result = run(executor, spec(), levers)
    assert result.failure == "crashed"
    assert result.message.startswith(f"rank 1 of {RANKS}: RuntimeError: {failing_rank.MESSAGE}")
    server = psutil.Process(executor.processes()[1])
    assert server.children(recursive=True) == []
