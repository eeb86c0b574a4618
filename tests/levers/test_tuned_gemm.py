"""The lever of measured algorithms: declaration, hooks, witness on the model, its op cases."""

from __future__ import annotations

import pytest
import torch

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from levers import fp8_linear, fused_linear_grads, fused_mlp_hidden, gemm_epilogue_mlp
from levers.base import OpCase, Site, claims, engaged
from levers.errors import BadParameter, LeverConflict
from levers.kernels.cublaslt_linear import TunedLinears
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass
from levers.tuned_gemm import LEVER, SITE
from tests.levers.test_step_levers import SLAT_FLOW, SMALL, session

CASES = [
    pytest.param(case, id=f"{setting}: {case.name}")
    for setting in ("on", "narrow", "bgradb")
    for case in LEVER.op_cases(setting, "cpu")
]


def test_it_is_acceptable_as_a_lever_that_claims_lossless() -> None:
    assert complaints(LEVER) == ()
    facts = SampleFacts("cuda", "ss_flow", sites=(SITE,))
    assert LEVER.policy(facts).claims is ParityClass.LOSSLESS
    assert SITE in LEVER.unmet(SampleFacts("cuda", "ss_flow"), "on")[0]


def test_it_swaps_the_callable_and_puts_back_what_it_found() -> None:
    def found() -> None: ...

    site = Site(SITE, found)
    for setting, narrow in (("on", False), ("narrow", True)):
        with engaged(LEVER, {SITE: site}, setting):
            assert isinstance(site.launch, TunedLinears)
            assert site.launch.narrow is narrow
        assert site.launch is found


def test_it_conflicts_with_8_bit_products_and_takes_the_place_of_the_fp32_gradients() -> None:
    with pytest.raises(LeverConflict, match=SITE):
        claims([LEVER, fp8_linear.LEVER])
    claims([LEVER, fused_linear_grads.LEVER, fused_mlp_hidden.LEVER, gemm_epilogue_mlp.LEVER])


def test_the_witness_sees_another_backward_in_each_arm_once_a_linear() -> None:
    seen = {}
    for setting in ("off", "on"):
        one = session(SLAT_FLOW, SMALL["slat_flow"])
        with engaged(LEVER, one.sites, setting):
            one.exercise()
            seen[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
    assert seen["on"] == "backward=TunedLinearBackward x 14"
    assert "Tuned" not in seen["off"]


def test_a_step_on_a_cpu_has_the_originals_loss_and_gradients_up_to_rounding() -> None:
    found = []
    for setting in ("off", "on"):
        one = session(SLAT_FLOW, SMALL["slat_flow"])
        with engaged(LEVER, one.sites, setting):
            loss = one.step().run()
        found.append((loss, [p.grad for p in one.step().model.parameters() if p.grad is not None]))
    (loss, theirs), (ours_loss, ours) = found
    assert float(ours_loss) == pytest.approx(float(loss), rel=1e-3)
    assert len(theirs) == len(ours) > 14
    for one, other in zip(theirs, ours, strict=True):
        assert float((one - other).norm()) <= 0.05 * float(one.norm())


def test_together_with_the_epilogues_every_product_of_a_block_goes_through_the_library() -> None:
    one = session(SLAT_FLOW, SMALL["slat_flow"])
    with engaged(gemm_epilogue_mlp.LEVER, one.sites, "on"), engaged(LEVER, one.sites, "on"):
        one.exercise()
        assert LEVER.witness(one.sites[SITE])["train/tok_s"].endswith("TunedLinearBackward x 10")


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_lossless_or_exact_and_has_power(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert found.parity in (ParityClass.BYTE_EXACT, ParityClass.LOSSLESS)
    assert found.powerless == ()


def test_a_weights_gradient_is_the_fp32_sum_or_with_narrow_the_rounded_one() -> None:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.ones(8, 8, requires_grad=True)
    found = []
    for narrow in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = TunedLinears(torch.nn.functional.linear, narrow=narrow)(x, weight, None)
        found.append(torch.autograd.grad(out, weight, x)[0])
    wide, narrow_one = found
    assert wide.dtype == narrow_one.dtype == torch.float32
    assert not torch.equal(wide, narrow_one)
    assert torch.equal(wide.bfloat16().float(), narrow_one)


def test_without_autocast_over_a_callable_that_names_no_dtypes_it_says_what_to_do() -> None:
    linear = TunedLinears(torch.nn.functional.linear)
    with pytest.raises(BadParameter, match="autocast"):
        linear(torch.ones(2, 8), torch.ones(8, 8), None)
