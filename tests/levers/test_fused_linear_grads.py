"""The lever: declaration, hooks, witness on the model, what it may stand beside, its op cases."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers import fp8_linear, fused_mlp_hidden
from levers.base import OpCase, Site, claims, engaged
from levers.errors import LeverConflict
from levers.fused_linear_grads import LEVER, SITE
from levers.kernels.linear_grads import FusedLinearGrads
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass

CASES = LEVER.op_cases("on", "cpu")
TINY = {"depth": "2", "bs": "2", "tokens": "20", "cap": "40", "profile": "uniform", "steps": "1"}


def facts(device: str = "cpu", sites: tuple[str, ...] = (SITE,)) -> SampleFacts:
    return SampleFacts(device_type=device, workload="slat_flow", sites=sites)


def session(**parameters: str) -> TrainingSession:
    resolved: Mapping[str, object] = SLAT_FLOW.resolve(
        TINY | parameters, DeviceFacts("cpu", "cpu", 0)
    )
    found = open_session(resolved, "cpu", 1, "engine")  # type: ignore[arg-type]
    assert isinstance(found, TrainingSession)
    return found


def test_it_is_acceptable_as_a_lever_that_claims_lossless() -> None:
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
        assert isinstance(site.launch, FusedLinearGrads)
    assert site.launch is found


def test_it_conflicts_with_8_bit_products_and_not_with_the_fused_hidden_layer() -> None:
    with pytest.raises(LeverConflict, match=SITE):
        claims([LEVER, fp8_linear.LEVER])
    claims([LEVER, fused_mlp_hidden.LEVER])


def test_the_witness_sees_another_backward_in_each_arm_once_a_linear() -> None:
    seen = {}
    for setting in ("off", "on"):
        one = session()
        with engaged(LEVER, one.sites, setting):
            one.exercise()
            seen[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
    assert seen["on"] == "backward=FusedLinearBackward x 14"
    assert "FusedLinear" not in seen["off"]


def test_a_step_on_a_cpu_is_the_originals_bit_for_bit() -> None:
    found = []
    for setting in ("off", "on"):
        one = session()
        with engaged(LEVER, one.sites, setting):
            loss = one.step().run()
        gradients = [p.grad for p in one.step().model.parameters() if p.grad is not None]
        found.append((loss, *gradients))
    assert len(found[0]) > 14
    assert all(map(torch.equal, *found))


def test_the_hidden_layer_that_is_fused_goes_through_it_too() -> None:
    one = session()
    with engaged(LEVER, one.sites, "on"), engaged(fused_mlp_hidden.LEVER, one.sites, "on"):
        one.exercise()
        assert LEVER.witness(one.sites[SITE])["train/tok_s"].endswith("FusedLinearBackward x 14")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_case_is_lossless_or_exact_and_has_power(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert found.parity in (ParityClass.BYTE_EXACT, ParityClass.LOSSLESS)
    assert found.powerless == ()


def test_the_cases_cover_sides_rows_dtypes_frozen_parts_and_wild_values() -> None:
    names = " | ".join(case.name for case in CASES)
    for part in ("wide", "narrow", "one row", "33 to 57", "float16", "fp32 rows", "fp32 products"):
        assert part in names
    for part in ("frozen weight", "without a gradient", "large means", "cancelling", "NaN"):
        assert part in names
