"""Builders for tests of the runner: the stub's spec, its frozen environment, its tasks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from experiments.environment import cpu_device
from experiments.frozen import FrozenEnvironment, frozen_environment
from experiments.spec import AbSpec, LeverSetting
from experiments.tasks import Task
from levers.policy import GatingPolicy, ParityClass
from tests.support.stub_workload import DEFAULTS, RATE, STUB

PLANTED = Path(__file__).parent / "planted"
POLICY = GatingPolicy(primaries=(RATE,), claims=ParityClass.LOSSLESS)


def use_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the stub and the planted levers known, also to the processes that are started."""
    monkeypatch.setenv("LEVERGATE_WORKLOADS", "stub=tests.support.stub_workload:STUB")
    monkeypatch.setenv("LEVERGATE_LEVERS", str(PLANTED))


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command with ``--json`` has printed."""
    return json.loads(capsys.readouterr().out)


def lines_of(home: Path, kind: str) -> int:
    """How many lines of that kind the journal of the home's one run has."""
    (journal,) = (home / "runs").glob("*/journal.jsonl")
    return sum(json.loads(line)["kind"] == kind for line in journal.read_text().splitlines())


def spec(lever: str = "planted_same", cand: str = "on", **changes: Any) -> AbSpec:
    values: dict[str, Any] = {
        "lever": lever,
        "ref": "off",
        "cand": cand,
        "workload": "stub",
        "parameters": {**DEFAULTS, "clock": "virtual"},
        "device": "cpu",
        "seed": 7,
        "policy": POLICY,
    }
    return AbSpec(**{**values, **changes})


def frozen(of: AbSpec, **changes: Any) -> FrozenEnvironment:
    values: dict[str, Any] = {
        "environ": dict(os.environ),
        "free_memory_bytes": 8 << 30,
        "cores": os.sched_getaffinity(0),
    }
    return frozen_environment(of, cpu_device(), STUB.opener, **{**values, **changes})


def task(of: AbSpec, kind: str = "measure", arm: str = "cand", **changes: Any) -> Task:
    setting = of.cand if arm == "cand" else of.ref
    subject = LeverSetting(lever=of.lever, setting=setting)
    values: dict[str, Any] = {
        "kind": kind,
        "arm": arm,
        "workload": of.workload,
        "parameters": of.parameters,
        "device": of.device,
        "seed": of.seed,
        "levers": () if setting == "off" else (subject,),
        "subject": subject,
    }
    return Task(**{**values, **changes})
