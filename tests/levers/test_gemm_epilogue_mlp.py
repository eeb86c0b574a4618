"""The lever of the MLP's epilogues: declaration, hooks, witness on the model, its op cases."""

from __future__ import annotations

import pytest

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from levers import fused_linear_grads, fused_mlp_hidden
from levers.base import OpCase, Site, claims, engaged
from levers.gemm_epilogue_mlp import LEVER, SITE
from levers.kernels.mlp_epilogue import EpilogueMlps, Fusion
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass
from tests.levers.test_step_levers import SLAT_FLOW, SMALL, session

CASES = [
    pytest.param(case, id=f"{setting}: {case.name}")
    for setting in ("on", "bgrad", "backward", "bgradb")
    for case in LEVER.op_cases(setting, "cpu")
]


def test_it_is_acceptable_as_a_lever_that_claims_lossless() -> None:
    assert complaints(LEVER) == ()
    facts = SampleFacts("cuda", "ss_flow", sites=(SITE,))
    assert LEVER.policy(facts).claims is ParityClass.LOSSLESS
    assert LEVER.unmet(facts, "on") == ()
    assert SITE in LEVER.unmet(SampleFacts("cuda", "ss_flow"), "on")[0]


def test_each_setting_swaps_the_callable_and_puts_back_what_it_found() -> None:
    def found() -> None: ...

    fusions = {
        "on": Fusion(),
        "bgrad": Fusion(active=True, sums=True),
        "backward": Fusion(active=False, sums=True),
    }
    for setting, fusion in fusions.items():
        site = Site(SITE, found)
        with engaged(LEVER, {SITE: site}, setting):
            assert isinstance(site.launch, EpilogueMlps)
            assert site.launch.fusion == fusion
        assert site.launch is found


def test_it_may_stand_beside_levers_on_the_linears_and_says_whose_place_it_takes() -> None:
    claims([LEVER, fused_mlp_hidden.LEVER, fused_linear_grads.LEVER])
    assert fused_mlp_hidden.LEVER.name in LEVER.supersedes


def test_the_witness_sees_another_backward_in_each_arm_once_a_block() -> None:
    seen = {}
    for setting in ("off", "on"):
        one = session(SLAT_FLOW, SMALL["slat_flow"])
        with engaged(LEVER, one.sites, setting):
            one.exercise()
            seen[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
    assert seen["on"] == "backward=EpilogueMlpBackward x 2"
    assert "Epilogue" not in seen["off"]


def test_the_linears_of_the_attentions_still_go_through_their_own_site() -> None:
    calls = {}
    for setting in ("off", "on"):
        one = session(SLAT_FLOW, SMALL["slat_flow"])
        with engaged(LEVER, one.sites, setting):
            one.exercise()
        calls[setting] = sum(one.sites["flow.linear"].observations["train/tok_s"].values())
    # two Linears in each of two blocks are the MLP's
    assert calls["on"] == calls["off"] - 4 > 0


def test_a_step_has_the_originals_loss_and_gradients_up_to_rounding() -> None:
    found = []
    for setting in ("off", "on"):
        one = session(SLAT_FLOW, SMALL["slat_flow"])
        with engaged(LEVER, one.sites, setting):
            loss = one.step().run()
        gradients = [p.grad for p in one.step().model.parameters() if p.grad is not None]
        found.append((loss, gradients))
    (loss, theirs), (ours_loss, ours) = found
    assert float(ours_loss) == pytest.approx(float(loss), rel=1e-3)
    assert len(theirs) == len(ours) > 14
    for one, other in zip(theirs, ours, strict=True):
        assert float((one - other).norm()) <= 0.05 * float(one.norm())


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_lossless_and_has_power(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert found.parity in (ParityClass.BYTE_EXACT, ParityClass.LOSSLESS), found.norm_ratio
    assert found.powerless == ()


def test_the_cases_cover_rows_dtypes_tails_frozen_parts_and_wild_values() -> None:
    names = " | ".join(str(case.id) for case in CASES)
    for part in ("one row", "40 to 72", "fp32 rows", "float16", "both tails", "mean", "tiny"):
        assert part in names
    for part in ("frozen parameters", "frozen biases", "without a gradient", "NaN", "Inf"):
        assert part in names
