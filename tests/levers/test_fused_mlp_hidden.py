"""The lever: declaration, hooks, witness on the model, and its op cases."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers.base import OpCase, Site, engaged
from levers.fused_mlp_hidden import LEVER, SITE
from levers.kernels.mlp_hidden import FusedMlpHidden
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass

CASES = LEVER.op_cases("on", "cpu")
TINY = {"depth": "2", "bs": "2", "tokens": "20", "cap": "40", "profile": "uniform", "steps": "1"}
NOISE = 3e-7
"""Relative error of an fp32 sum that is as good as its order of summation."""


def facts(device: str = "cpu", sites: tuple[str, ...] = (SITE,)) -> SampleFacts:
    return SampleFacts(device_type=device, workload="slat_flow", sites=sites)


def session() -> TrainingSession:
    parameters: Mapping[str, object] = SLAT_FLOW.resolve(TINY, DeviceFacts("cpu", "cpu", 0))
    found = open_session(parameters, "cpu", 1, "engine")  # type: ignore[arg-type]
    assert isinstance(found, TrainingSession)
    return found


def errors(case: OpCase, call: str, inputs: tuple[torch.Tensor, ...]) -> list[float]:
    """Relative error of each output against fp64, non-finite places compared by place."""
    outputs, truth = case.outputs(inputs), case.truth(inputs)
    getattr(case, call)(inputs, outputs)
    found = []
    for out, true in zip(outputs, truth, strict=True):
        keep = torch.isfinite(true)
        assert torch.equal(torch.isfinite(out), keep)
        found.append(float((out.double() - true)[keep].norm() / true[keep].norm()))
    return found


def test_it_is_acceptable_as_a_lever() -> None:
    assert complaints(LEVER) == ()
    assert LEVER.policy(facts("cuda")).claims is ParityClass.LOSSLESS
    assert LEVER.policy(facts()).guard_for("memory/peak_bytes") is None
    assert LEVER.policy(facts("cuda")).guard_for("memory/peak_bytes") is not None


def test_a_workload_without_the_site_is_unmet_and_so_is_cuda_without_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert LEVER.unmet(facts("cuda"), "on") == ()
    assert SITE in LEVER.unmet(facts(sites=()), "on")[0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in LEVER.unmet(facts("cuda"), "on")[0]
    assert LEVER.unmet(facts("cpu"), "on") == ()


def test_it_swaps_the_callable_and_puts_back_what_it_found() -> None:
    def found() -> None: ...

    site = Site(SITE, found)
    with engaged(LEVER, {SITE: site}, "on"):
        assert isinstance(site.launch, FusedMlpHidden)
    assert site.launch is found


def test_the_witness_sees_another_backward_in_each_arm_once_a_block() -> None:
    seen = {}
    for setting in ("off", "on"):
        one = session()
        with engaged(LEVER, one.sites, setting):
            one.exercise()
            seen[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
    assert seen["on"] == "backward=GeluAndBiasGradBackward x 2"
    assert "BiasGrad" not in seen["off"]


def test_the_linear_still_goes_through_its_own_site() -> None:
    calls = {}
    for setting in ("off", "on"):
        one = session()
        with engaged(LEVER, one.sites, setting):
            one.exercise()
        seen = one.sites["flow.linear"].observations["train/tok_s"]
        calls[setting] = sum(seen.values())
    assert calls["on"] == calls["off"] > 0


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_no_case_is_further_from_fp64_than_the_reference(case: OpCase) -> None:
    inputs = case.inputs(0)
    reference, candidate = (errors(case, call, inputs) for call in ("reference", "candidate"))
    for theirs, ours in zip(reference, candidate, strict=True):
        assert ours <= max(1.05 * theirs, NOISE)


def test_the_cases_cover_rows_tails_and_wild_values() -> None:
    names = " | ".join(case.name for case in CASES)
    for part in ("1 rows", "2222", "float16", "float32", "both tails", "mean", "NaN", "Inf"):
        assert part in names
    assert sum(case.masks is not None for case in CASES) == 2
