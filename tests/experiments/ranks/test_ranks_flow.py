"""The flow workloads on several ranks, tiny, with their own levers."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.environment import cpu_device
from experiments.executor import Executor
from experiments.frozen import frozen_environment
from experiments.ranks.needs import with_ranks
from experiments.spec import AbSpec, LeverSetting
from experiments.tasks import Task, TaskResult
from experiments.workloads import catalog
from levers.policy import GatingPolicy

TINY = {"depth": "1", "steps": "2", "warmup": "1", "optimizer": "adamw", "bs": "2"}
PACKED = {**TINY, "profile": "uniform", "tokens": "24"}
NEEDS_DEEPSPEED = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
)
ON = LeverSetting(lever="segment_sum_broadcast", setting="on")


def spec(workload: str, ranks: int, **settings: str) -> AbSpec:
    found = catalog.get(workload)
    resolved = found.resolve(settings, cpu_device().facts)
    return AbSpec(
        lever=ON.lever,
        ref="off",
        cand="on",
        workload=workload,
        parameters=dict(with_ranks(found, resolved, ranks)),
        device="cpu",
        seed=5,
        policy=GatingPolicy(primaries=("train/tok_s",)),
    )


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    of = spec("slat_flow", 2, **PACKED)
    frozen = frozen_environment(
        of,
        cpu_device(),
        catalog.get("slat_flow").opener,
        environ=dict(os.environ),
        free_memory_bytes=8 << 30,
        cores=os.sched_getaffinity(0),
    )
    with Executor(frozen, Path(tmp_path_factory.mktemp("work")), time_limit_s=60) as executor:
        yield executor


def run(executor: Executor, of: AbSpec, kind: str = "measure", *, on: bool = True) -> TaskResult:
    values = {
        "kind": kind,
        "arm": "cand",
        "workload": of.workload,
        "parameters": of.parameters,
        "device": "cpu",
        "seed": of.seed,
        "levers": (ON,) if on else (),
        "subject": ON,
    }
    result = executor.run(Task.model_validate(values)).result
    assert result.failure is None, f"{result.message}\n{result.traceback}"
    return result


def test_the_packed_step_trains_on_two_ranks_with_a_lever_on(executor: Executor) -> None:
    result = run(executor, spec("slat_flow", 2, **PACKED))
    assert result.disagreements == ()
    assert result.left_changed == ()
    assert result.measurement is not None
    assert result.measurement.values["train/tok_s"] > 0
    assert result.measurement.raw["loss"] != result.measurement.raw["loss/rank1"]


@NEEDS_DEEPSPEED
def test_the_step_trains_alike_under_deepspeed_and_its_figures_are_there(
    executor: Executor,
) -> None:
    """The losses part by the order of a sum alone; the second follows an update."""
    settings = {**PACKED, "accumulate": "2"}
    results = {
        way: run(executor, spec("slat_flow", 2, **settings, zero=way))
        for way in ("torch", "deepspeed")
    }
    result = results["deepspeed"]
    found, other = result.measurement, results["torch"].measurement
    assert result.disagreements == ()
    assert result.left_changed == ()
    assert found is not None
    assert other is not None
    assert found.inputs_digest == other.inputs_digest
    for name in ("loss", "loss/rank1"):
        assert found.raw[name] == pytest.approx(other.raw[name], rel=1e-5)
    assert found.raw["loss"][0] != found.raw["loss"][1]
    assert set(found.raw) == set(other.raw)
    assert all(min(found.raw[name]) > 0 for name in ("compute_s", "update_s", "barrier_s"))
    assert 0 <= float(str(found.facts["communication_share"])) <= 1
    weights = "weights at the start, weights after the steps"
    assert results["torch"].facts["ranks_compared"] == f"{weights}, gradients"
    assert result.facts["ranks_compared"] == weights


@NEEDS_DEEPSPEED
def test_a_witness_counts_the_levers_backward_under_deepspeed_too(executor: Executor) -> None:
    result = run(executor, spec("slat_flow", 2, **PACKED, zero="deepspeed"), "witness")
    assert result.disagreements == ()
    assert result.plans["train/tok_s"] == "backward=SegmentSumBroadcastBackward x 6"


def test_the_witness_counts_the_levers_backward_on_each_rank(executor: Executor) -> None:
    result = run(executor, spec("slat_flow", 2, **PACKED), "witness")
    assert result.disagreements == ()
    assert result.plans["train/tok_s"] == "backward=SegmentSumBroadcastBackward x 6"


def test_the_dense_step_in_micro_batches_agrees_on_four_ranks(executor: Executor) -> None:
    dense = {**TINY, "grid": "3", "accumulate": "2"}
    result = run(executor, spec("ss_flow", 4, **dense), on=False)
    assert result.disagreements == ()
    assert result.facts["ranks"] == 4
