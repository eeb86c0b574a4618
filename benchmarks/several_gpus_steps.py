"""One measured group of the several-GPU benchmark: what is run, and the row that comes of it."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.whole_stack import NAME
from experiments.environment import Device, find_device
from experiments.executor import Executor
from experiments.frozen import frozen_environment
from experiments.ranks.deepspeed_package import BUCKET_ELEMENTS
from experiments.ranks.needs import with_ranks
from experiments.spec import DEEPSPEED, NO_LEVER, ZERO, AbSpec, LeverSetting
from experiments.tasks import Task, TaskResult
from experiments.workloads import catalog as workloads
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.memory import BYTES_OF_ADAM, TARGET_SHARE, activation_bytes
from experiments.workloads.flow.memory import fixed_bytes as unsharded_bytes
from levers.base import OFF
from levers.policy import GatingPolicy

PUBLISHED_GB = {2: 38.0, 8: 105.0}
"""Memory per GPU by batch as published: ZeRO-1, Adam, bf16, 1.3 B, on H200s."""

PUBLIC = {"size": "xl", "profile": "uniform", "tokens": "2700", "optimizer": "adamw"}
"""2700 tokens a sample give the published ratio of true to matmul-only MFU."""

REHEARSAL = {
    "size": "small",
    "profile": "uniform",
    "tokens": "48",
    "depth": "2",
    "optimizer": "adamw",
    "steps": "3",
    "warmup": "1",
}

STOPPING_S = 20.0
"""An interrupted run ends its processes within this."""

SAMPLE_LIMIT_S = 300.0
"""A group that takes longer hangs."""


@dataclass(frozen=True)
class Point:
    """One measured group: how many ranks, at which batch for each of them."""

    workload: str
    ranks: int
    bs: int
    steps: Mapping[str, str]
    depth: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"step {self.workload} ranks={self.ranks} bs={self.bs}"

    def config(self, device: Device) -> FlowConfig:
        """One rank alone has nobody to divide its optimiser's state with."""
        requested = {**self.steps, **self.depth, "bs": str(self.bs)}
        if self.ranks == 1:
            requested.pop(ZERO, None)
        return FlowConfig.of(workloads.get(self.workload).resolve(requested, device.facts))


def spec_of(point: Point, device: Device, levers: tuple[LeverSetting, ...]) -> AbSpec:
    """The point as a comparison of nothing: its environment is that of every measured process."""
    workload = workloads.get(point.workload)
    parameters = {**point.config(device).scalars()}
    return AbSpec(
        lever=NO_LEVER,
        ref=OFF,
        cand=OFF,
        workload=point.workload,
        parameters=dict(with_ranks(workload, parameters, point.ranks)),
        device=device.facts.device,
        seed=7,
        stack=levers,
        policy=GatingPolicy(primaries=("*",)),
    )


def measured(
    point: Point, device_name: str, folder: Path, levers: tuple[LeverSetting, ...]
) -> tuple[TaskResult, float]:
    """One group of fresh processes; its result, and how long all of it took."""
    device = find_device(device_name, visible=visible(), ranks=point.ranks)
    spec = spec_of(point, device, levers)
    frozen = frozen_environment(
        spec,
        device,
        workloads.get(point.workload).opener,
        environ=os.environ,
        free_memory_bytes=psutil.virtual_memory().available,
        cores=os.sched_getaffinity(0),
        arm_caches=folder / "caches",
    )
    task = Task(
        kind="measure",
        arm="cand",
        workload=spec.workload,
        parameters=spec.parameters,
        device=spec.device,
        seed=spec.seed,
        levers=levers,
    )
    began = time.monotonic()
    with Executor(frozen, folder / "work", time_limit_s=SAMPLE_LIMIT_S) as executor:
        result = executor.run(task).result
    return result, time.monotonic() - began


def visible() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def expected_bytes(config: FlowConfig, ranks: int) -> float:
    """Peak of a step by the closed form: ZeRO-1 leaves a share of the moments on each rank."""
    return fixed_bytes(config, ranks) + activation_bytes(config, config.lengths)


def fixed_bytes(config: FlowConfig, ranks: int) -> float:
    """DeepSpeed holds its share of the weights once more, and a bucket of gradients."""
    weights = config.parameter_count
    moments = weights * BYTES_OF_ADAM
    shared = unsharded_bytes(config) - moments + moments / ranks
    if config.zero != DEEPSPEED:
        return shared
    return shared + 4 * weights / ranks + 4 * min(weights, BUCKET_ELEMENTS)


@dataclass(frozen=True)
class Memory:
    """How the peak of a step grows with the batch, and where that is known from."""

    fixed_bytes: float
    sample_bytes: float
    source: str

    def peak_bytes(self, bs: int) -> float:
        return self.fixed_bytes + bs * self.sample_bytes

    def largest_batch(self, device_bytes: int) -> int:
        """Samples for each rank that fit in the target share of the device; at least one."""
        return max(1, int((TARGET_SHARE * device_bytes - self.fixed_bytes) / self.sample_bytes))


CLOSED_FORM = "the closed form of the original step"


def memory_of(config: FlowConfig, ranks: int, rows: Sequence[Mapping[str, Any]]) -> Memory:
    """The straight line through what was measured on so many ranks at two batches or more.

    Peaks are linear in tokens, and levers change both numbers of the line. With fewer points, or
    peaks that do not grow (the memory of a CPU's process), there is only the closed form, which is
    fitted to the original step without levers.
    """
    peaks = {one["bs"]: one["values"]["memory/peak_bytes"] for one in rows if one.get("values")}
    if len(peaks) > 1:
        fitted = statistics.linear_regression(list(peaks), list(peaks.values()))
        if fitted.slope > 0:
            batches = ", ".join(map(str, sorted(peaks)))
            source = f"the line through the peaks measured at bs {batches}"
            return Memory(fitted.intercept, fitted.slope, source)
    sample = activation_bytes(config, config.lengths) / len(config.lengths)
    return Memory(fixed_bytes(config, ranks), sample, CLOSED_FORM)


def row_of(point: Point, device: Device, result: TaskResult, wall_s: float) -> dict[str, Any]:
    """A result as a row of the table."""
    config = point.config(device)
    row: dict[str, Any] = {
        "workload": point.workload,
        "ranks": point.ranks,
        "bs": point.bs,
        "wall_s": wall_s,
        "expected_bytes": expected_bytes(config, point.ranks),
        "published_gb": PUBLISHED_GB.get(point.bs) if config.size == "xl" else None,
        "failure": result.failure,
        "message": result.message,
        "disagreements": list(result.disagreements),
    }
    if result.measurement is not None:
        row["values"] = dict(result.measurement.values)
        row["facts"] = {**result.facts, **result.measurement.facts}
        row["raw"] = {name: list(values) for name, values in result.measurement.raw.items()}
    return row


def efficiency(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Step time on one GPU over that on all, at the same batch for each GPU."""
    for one in rows:
        same = (one["workload"], one["bs"]) == (row["workload"], row["bs"])
        if same and one["ranks"] == 1 and one.get("values") and row.get("values"):
            return float(one["values"]["train/step_ms"] / row["values"]["train/step_ms"])
    return None


def line(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """One line of the table."""
    head = f"{row['workload']:10}{row['ranks']:>6}{row['bs']:>5}"
    if row["failure"] is not None:
        return f"{head}  {row['failure']}: {row['message']}"
    values, facts = row["values"], row["facts"]
    scale, share = efficiency(row, rows), facts.get("communication_share")
    published = row["published_gb"]
    return (
        f"{head}{values['train/step_ms']:>10.1f}{values['train/tok_s']:>11.0f}"
        f"{values['train/mfu_true']:>8.2f}{values['train/mfu_matmul']:>8.2f}"
        f"{values['memory/peak_bytes'] / 1e9:>9.2f}{row['expected_bytes'] / 1e9:>9.2f}"
        f"{'' if published is None else f'{published:.0f}':>6}"
        f"{'' if scale is None else f'{100 * scale:.1f}':>7}"
        f"{'' if share is None else f'{100 * share:.1f}':>7}"
        f"{'  ranks disagree' if row['disagreements'] else ''}"
    )


HEAD = (
    "workload   ranks   bs   step ms      tok/s  true %   mm %   GB/GPU form GB  pub. eff. % comm %"
)


def begun_in(home: Path) -> str:
    """The last run of the whole stack that was not decided; empty where there is none."""
    begun = [
        path.parent.name
        for path in home.glob("runs/*/spec.json")
        if f'"{NAME}"' in path.read_text() and not (path.parent / "verdict.json").exists()
    ]
    return max(begun, default="")


def within(
    words: Sequence[str], variables: Mapping[str, str], limit_s: float
) -> tuple[int, str, str] | None:
    """Run a command; interrupted at the limit, so that it can be resumed, and then None."""
    process = subprocess.Popen(
        words,
        env=variables,
        cwd=Path(__file__).resolve().parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=max(1.0, limit_s))
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.communicate(timeout=STOPPING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    return None
