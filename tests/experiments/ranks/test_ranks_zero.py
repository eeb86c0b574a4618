"""Who divides the optimiser's state: from ``--set zero=...`` to the scope, the record and cures."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import warnings
from types import ModuleType

import pytest

from experiments import environment
from experiments.calibration import run as calibration
from experiments.calibration.requests import CalibrateRequest
from experiments.environment import cpu_device
from experiments.ranks import needs
from experiments.ranks.deepspeed_package import (
    BUCKET_ELEMENTS,
    COMPILED,
    UNWANTED,
    config,
    environment_kept,
    load,
)
from experiments.ranks.needs import packages_of, with_ranks
from experiments.ranks.rank_worker import surroundings
from experiments.values import Scalar
from experiments.workloads import catalog
from experiments.workloads.flow.config import FlowConfig
from levers.errors import BadParameter

FLOW = catalog.get("slat_flow")
BY_DEEPSPEED = {"optimizer": "adamw", "zero": "deepspeed"}


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(needs, "package_version", lambda name: "0.20.1")


def asked(ranks: int, **settings: str) -> dict[str, Scalar]:
    return dict(with_ranks(FLOW, FLOW.resolve(settings, cpu_device().facts), ranks))


@pytest.mark.usefixtures("_installed")
def test_deepspeed_belongs_to_the_scope_and_torchs_own_way_is_not_named() -> None:
    assert asked(2, **BY_DEEPSPEED)["zero"] == "deepspeed"
    assert "zero" not in asked(2, optimizer="adamw")
    assert asked(2, optimizer="adamw", zero="torch") == asked(2, optimizer="adamw")
    assert FlowConfig.of(asked(2, **BY_DEEPSPEED)).zero == "deepspeed"
    assert FlowConfig.of(asked(2)).zero == "torch"


@pytest.mark.parametrize(
    ("ranks", "settings", "message", "cure"),
    [
        (1, BY_DEEPSPEED, "zero=deepspeed on one rank", "--ranks 2"),
        (2, {"zero": "deepspeed"}, "there is none", "optimizer=adamw"),
        (2, {**BY_DEEPSPEED, "zero": "fsdp"}, "zero='fsdp'", "torch | deepspeed"),
    ],
)
@pytest.mark.usefixtures("_installed")
def test_a_state_that_cannot_be_divided_so_is_refused_with_the_cure(
    ranks: int, settings: dict[str, str], message: str, cure: str
) -> None:
    with pytest.raises(BadParameter) as refused:
        asked(ranks, **settings)
    assert message in refused.value.message
    assert cure in refused.value.cure


def test_a_missing_package_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BadParameter, match="deepspeed, which is not installed") as refused:
        asked(2, **BY_DEEPSPEED)
    assert "pip install 'deepspeed>=" in refused.value.cure
    assert asked(2, optimizer="adamw")


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("version", "good"),
    [("0.19.8", True), ("1.0.0+cu130", True), ("0.9.12", False), ("0.19.7rc1", False)],
)
def test_a_version_that_does_more_than_is_asked_for_is_refused(
    version: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "package_version", lambda name: version)
    if good:
        assert asked(2, **BY_DEEPSPEED)["zero"] == "deepspeed"
        return
    with pytest.raises(BadParameter, match=f"0.19.8 or newer, here is {version}") as refused:
        asked(2, **BY_DEEPSPEED)
    assert "pip install 'deepspeed>=0.19.8'" in refused.value.cure


@pytest.mark.usefixtures("_installed")
def test_a_calibration_is_of_one_rank_and_refuses_it() -> None:
    request = CalibrateRequest("slat_flow", settings=BY_DEEPSPEED)
    with pytest.raises(BadParameter, match="on one rank"):
        calibration._spec(request, FLOW, cpu_device())


@pytest.mark.usefixtures("_installed")
def test_only_such_a_run_is_bound_to_the_packages_version(monkeypatch: pytest.MonkeyPatch) -> None:
    known = environment.package_version
    monkeypatch.setattr(
        environment,
        "package_version",
        lambda name: "0.19.8" if name == "deepspeed" else known(name),
    )
    found = [
        environment.describe(cpu_device(), {}, {}, {}, packages_of(parameters)).versions
        for parameters in (asked(2, **BY_DEEPSPEED), asked(2, optimizer="adamw"))
    ]
    assert found[0] == {**found[1], "deepspeed": "0.19.8"}


def test_every_rank_names_the_version_that_it_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    assert "deepspeed" not in surroundings({})
    module = ModuleType("deepspeed")
    module.__version__ = "0.19.8"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", module)
    assert surroundings({})["deepspeed"] == "0.19.8"


def test_the_engine_is_told_all_that_its_defaults_would_do_otherwise() -> None:
    """It clips gradients at 1.0 unless it is told not to, and waits for the device to time it."""
    small, large = config(1000), config(1_300_000_000)
    assert small["gradient_clipping"] == 0.0
    assert small["gradient_accumulation_steps"] == 1
    assert not small["timers"]["throughput"]["enabled"]
    assert small["zero_optimization"]["stage"] == 1
    assert small["zero_optimization"]["reduce_bucket_size"] == 1000
    assert large["zero_optimization"]["reduce_bucket_size"] == BUCKET_ELEMENTS


def test_variables_are_put_back_whatever_happens_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    before = dict(os.environ)
    with contextlib.suppress(ZeroDivisionError), environment_kept(LOCAL_RANK="0", ONE="1"):
        assert (os.environ["LOCAL_RANK"], os.environ["ONE"]) == ("0", "1")
        os.environ["SET_BY_A_LIBRARY"] = "1"
        raise ZeroDivisionError
    assert dict(os.environ) == before


def test_the_package_is_imported_without_mlflow_and_nvml_and_told_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, object] = {}

    def imported(name: str) -> ModuleType:
        blocked = [one for one in UNWANTED if one in sys.modules and sys.modules[one] is None]
        seen[name] = (os.environ.get("DS_ACCELERATOR"), *blocked)
        return ModuleType(name)

    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    nvml = ModuleType("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(importlib, "import_module", imported)
    with warnings.catch_warnings():
        load("cpu")
    assert seen == dict.fromkeys(("deepspeed", "deepspeed.ops", COMPILED), ("cpu", *UNWANTED))
    assert "mlflow" not in sys.modules
    assert sys.modules["pynvml"] is nvml
    assert "DS_ACCELERATOR" not in os.environ
