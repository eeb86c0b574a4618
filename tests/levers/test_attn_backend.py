"""The lever of the attention's kernel: declaration, what it refuses, hooks, witness, cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from experiments.workloads.flow import original
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.sites import Sites
from levers.attn_backend import LEVER, SITE
from levers.base import OFF, Site, engaged
from levers.kernels.attn_backend import PackedAttention, kept_offsets
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass

ONS = [name for name in LEVER.settings.names if name != OFF]


def facts(
    device: str = "cuda", parameters: Mapping[str, Any] | None = None, sites: Any = (SITE,)
) -> SampleFacts:
    return SampleFacts(device, "slat_flow", parameters or {}, sites)


def test_it_is_acceptable_as_a_lever_with_six_settings() -> None:
    assert complaints(LEVER) == ()
    assert LEVER.settings.names == ("off", "fa2", "cudnn", "fa3", "fa4", "torch-flash")
    assert LEVER.policy(facts()).claims is ParityClass.LOSSLESS


@pytest.mark.parametrize("setting", ONS)
def test_a_cpu_is_unmet_for_every_setting_but_off(setting: str) -> None:
    assert "CUDA" in " ".join(LEVER.unmet(facts("cpu"), setting))
    assert LEVER.unmet(facts("cpu"), OFF) == ()


@pytest.mark.parametrize("setting", ONS)
def test_missing_packages_sites_and_fp32_products_are_said(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reasons = LEVER.unmet(facts(), setting)
    assert bool(reasons) == (setting not in ("cudnn", "torch-flash"))
    assert all("not installed" in reason for reason in reasons)
    assert "matmul=fp32" in " ".join(LEVER.unmet(facts(parameters={"matmul": "fp32"}), setting))
    assert SITE in LEVER.unmet(facts(sites=()), setting)[0]


def test_it_takes_the_offsets_of_the_callable_that_it_found() -> None:
    sites = Sites(PRECISIONS["bf16"], "varlen")
    site = sites.by_name[SITE]
    with engaged(LEVER, sites.by_name, "torch-flash"):
        launch = site.launch
        assert isinstance(launch, PackedAttention)
        assert launch.backend == "torch-flash"
        assert launch.cu_seqlens == sites.cu_seqlens
    assert isinstance(site.launch, original.VarlenAttention)


def test_without_such_a_callable_it_takes_the_layouts_own() -> None:
    sites = Sites(PRECISIONS["bf16"], "sdpa")
    with engaged(LEVER, sites.by_name, "fa4"):
        launch = sites.by_name[SITE].launch
        assert isinstance(launch, PackedAttention)
        assert launch.cu_seqlens is kept_offsets


def test_the_witness_names_the_backward_and_its_count() -> None:
    site = Site(SITE, lambda: None)
    for _ in range(60):
        site.observe("train/tok_s", "backward=Fa4AttentionBackward")
    assert LEVER.witness(site) == {"train/tok_s": "backward=Fa4AttentionBackward x 60"}


@pytest.mark.parametrize("setting", ONS)
def test_the_cases_cover_ragged_and_equal_lengths_and_a_sample_of_one_token(setting: str) -> None:
    cases = LEVER.op_cases(setting, "cpu")
    assert len({case.name for case in cases}) == len(cases) == 8
    assert all(len(case.reorderings) == 1 for case in cases)


def test_a_cases_reference_is_near_its_truth_and_its_reordering_too() -> None:
    case = next(one for one in LEVER.op_cases("fa2", "cpu") if one.name == "cross, ragged")
    inputs = case.inputs(0)
    truth = case.truth(inputs)
    assert [tuple(one.shape) for one in truth] == [
        (859, 2, 32),
        (859, 2, 32),
        (2121, 2, 32),
        (2121, 2, 32),
    ]
    for call in (case.reference, *case.reorderings):
        outputs = case.outputs(inputs)
        call(inputs, outputs)
        for found, true in zip(outputs, truth, strict=True):
            assert (found.double() - true).norm() < 0.02 * true.norm()


def test_no_case_runs_on_a_cpu_by_another_path() -> None:
    case = LEVER.op_cases("cudnn", "cpu")[0]
    inputs = case.inputs(0)
    with pytest.raises(Exception, match="CUDA"):
        case.candidate(inputs, case.outputs(inputs))
    assert all(one.dtype == torch.bfloat16 for one in inputs)
