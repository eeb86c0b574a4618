"""The lever: declaration, policy by device, hooks, witness, its op cases, and the step with it."""

from __future__ import annotations

import pytest
import torch

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW, SS_FLOW, FlowWorkload
from levers.base import OpCase, Settings, Site, engaged
from levers.errors import BadSetting
from levers.fused_affine_norm import LEVER, SITE
from levers.kernels.affine_norm import affine_norm
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass

CASES = LEVER.op_cases("on", "cpu")
NODE = "backward=FusedAffineNormBackward"


def facts(device: str = "cpu", sites: tuple[str, ...] = (SITE,)) -> SampleFacts:
    return SampleFacts(device_type=device, workload="slat_flow", sites=sites)


def test_it_is_acceptable_as_a_lever() -> None:
    assert complaints(LEVER) == ()
    assert LEVER.env == "LEVER_FUSED_AFFINE_NORM"
    assert LEVER.settings == Settings(("off", "on"))
    with pytest.raises(BadSetting, match=r"off \| on"):
        LEVER.settings.check(LEVER.name, "auto")


def test_memory_guards_on_cuda_and_not_on_a_cpu() -> None:
    assert LEVER.policy(facts()).guard_for("memory/peak_bytes") is None
    guard = LEVER.policy(facts("cuda")).guard_for("memory/peak_bytes")
    assert guard is not None
    assert guard.margin == 0.01
    assert LEVER.policy(facts("cuda")).claims is ParityClass.LOSSLESS


def test_a_workload_without_the_site_is_unmet() -> None:
    assert LEVER.unmet(facts(), "on") == ()
    assert SITE in LEVER.unmet(facts(sites=()), "on")[0]
    assert LEVER.unmet(facts(sites=()), "off") == ()


def test_missing_triton_is_unmet_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in LEVER.unmet(facts("cuda"), "on")[0]
    assert LEVER.unmet(facts("cpu"), "on") == ()


def test_it_swaps_the_callable_and_puts_back_what_it_found() -> None:
    def found(*arguments: object) -> None: ...

    site = Site(SITE, found)
    with engaged(LEVER, {SITE: site}, "on"):
        assert site.launch is affine_norm
    assert site.launch is found


def session(workload: FlowWorkload) -> TrainingSession:
    changes = {"depth": "2", "bs": "4", "threads": "1"}
    parameters = workload.resolve(changes, DeviceFacts("cpu", "test cpu", 8 << 30))
    found = open_session(parameters, "cpu", 3, "engine")
    assert isinstance(found, TrainingSession)
    return found


@pytest.mark.parametrize("workload", [SLAT_FLOW, SS_FLOW], ids=LEVER.workloads)
def test_the_witness_names_its_own_backward_in_every_block(workload: FlowWorkload) -> None:
    plans = {}
    for setting in ("off", "on"):
        one = session(workload)
        with engaged(LEVER, one.sites, setting):
            one.exercise()
            plans[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
    assert plans["on"] == f"{NODE} x 2"
    assert NODE not in plans["off"]


def test_no_gradient_of_the_step_moves_away_from_fp64() -> None:
    errors = {}
    for setting in ("off", "on"):
        one = session(SLAT_FLOW)
        with engaged(LEVER, one.sites, setting):
            found = one.outputs({"want": "gradients"}).gradients
        errors[setting] = {g.parameter: g.relative_error for g in found}
    assert errors["on"].keys() == errors["off"].keys()
    for name, error in errors["on"].items():
        assert error <= 1.05 * errors["off"][name] + 2.0**-9, name


def relative(found: torch.Tensor, truth: torch.Tensor, keep: torch.Tensor) -> float:
    scale = truth[keep].norm().clamp(min=1e-300)
    return float((found.double() - truth)[keep].norm() / scale)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_no_case_is_further_from_fp64_than_the_reference(case: OpCase) -> None:
    inputs = case.inputs(0)
    reference, candidate = case.outputs(inputs), case.outputs(inputs)
    case.reference(inputs, reference)
    case.candidate(inputs, candidate)
    truths = case.truth(inputs)
    masks = case.masks(inputs) if case.masks else [torch.zeros_like(t).bool() for t in truths]
    for ref, cand, truth, wild in zip(reference, candidate, truths, masks, strict=True):
        assert torch.equal(~torch.isfinite(cand), wild)
        floor = torch.finfo(cand.dtype).eps / 4
        bound = max(1.05 * relative(ref, truth, ~wild), floor)
        assert relative(cand, truth, ~wild) <= bound


def test_the_cases_cover_both_directions_lengths_and_wild_values() -> None:
    names = " | ".join(case.name for case in CASES)
    for part in ("forward lengths 1 ", "backward lengths ragged", "mean/sigma 1.0", "odd width"):
        assert part in names
    for part in ("cancelling", "subnormal", "large mean", "constant rows", "float16", "float32"):
        assert f"backward {part}" in names
    assert sum(case.masks is not None for case in CASES) == 2
