"""Whole run records with drawn samples, for tests of the way from samples to a decision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.plan import make_plan
from experiments.records import Environment, Sample
from experiments.run_record import RunRecord
from experiments.spec import AbSpec
from experiments.workloads.base import Target
from levers.policy import ParityClass
from tests.support.evidence_factory import AXES, C1, C2, GUARD, LOOKS, parity, policy, witnesses
from tests.support.evidence_factory import sample as one_sample

RUN_AXES = tuple(axis for axis in AXES if axis.name in (C1, C2, GUARD))
ENVIRONMENT = Environment(
    device_kind="test cpu",
    device_type="cpu",
    host="host",
    boot_id="boot",
    versions={"torch": "2.13"},
    cpu_count=2,
    memory_bytes=8 << 30,
)
BASE = {C1: 100.0, C2: 180.0, GUARD: 9.0}


def drawn(
    pairs: int,
    effects: Mapping[str, float],
    *,
    sd: float = 0.005,
    ratio: float = 0.95,
    seed: int = 1,
    scale: float = 1.0,
    swap: bool = False,
) -> tuple[Sample, ...]:
    """Samples of a plan: log effects per axis (> 0 is better), noise, reference over oracle."""
    rng = np.random.default_rng(seed)
    signs = {axis.name: axis.sign for axis in RUN_AXES}
    samples = []
    for step in make_plan(seed, pairs, oracle=True).steps:
        for run in step.runs:
            arm = {"ref": "cand", "cand": "ref"}.get(run.arm, run.arm) if swap else run.arm
            values = {}
            for axis, base in BASE.items():
                better = effects.get(axis, 0.0) if run.arm == "cand" else 0.0
                better -= math.log(ratio) if run.arm == "oracle" else 0.0
                noise = float(rng.normal(0, sd / math.sqrt(2)))
                values[axis] = scale * base * math.exp(signs[axis] * better + noise)
            samples.append(one_sample(run.pair, arm, values, position=run.position))
    return tuple(samples)


def record(samples: tuple[Sample, ...], claims: ParityClass = ParityClass.LOSSLESS, **changes: Any):
    """A running record with these samples; ``spec`` changes go in as a mapping."""
    spec = {
        "lever": "fa2_nsplits_cap",
        "ref": "off",
        "cand": "auto",
        "workload": "decode",
        "parameters": {},
        "device": "cpu",
        "seed": 1,
        "looks": LOOKS,
        "oracle": "sdpa",
        "policy": policy(claims),
        **changes.pop("spec", {}),
    }
    values: dict[str, Any] = {
        "run_id": "20261129-160000-abcdef",
        "status": "running",
        "spec": AbSpec(**spec),
        "plan_digest": "p",
        "created_at": "2026-11-29T16:00:00+00:00",
        "axes": RUN_AXES,
        "environment": ENVIRONMENT,
        "targets": (Target(C1, "oracle"), Target(C2, "oracle")),
        "witnesses": witnesses((C1, C2)),
        "parity": parity(claims),
        "samples": samples,
    }
    return RunRecord(**{**values, **changes})
