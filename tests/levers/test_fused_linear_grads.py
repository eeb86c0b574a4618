"""The Linears without casts: what they may stand beside, the step on a CPU, the op cases.

What the lever shares with its kind is in test_step_levers.
"""

from __future__ import annotations

import pytest
import torch

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from levers import fp8_linear, fused_mlp_hidden
from levers.base import OpCase, claims, engaged
from levers.errors import LeverConflict
from levers.fused_linear_grads import LEVER, SITE
from levers.policy import ParityClass
from tests.levers.test_step_levers import SLAT_FLOW, SMALL, session

CASES = LEVER.op_cases("on", "cpu")


def test_it_conflicts_with_8_bit_products_and_not_with_the_fused_hidden_layer() -> None:
    with pytest.raises(LeverConflict, match=SITE):
        claims([LEVER, fp8_linear.LEVER])
    claims([LEVER, fused_mlp_hidden.LEVER])


def test_a_step_on_a_cpu_is_the_originals_bit_for_bit() -> None:
    found = []
    for setting in ("off", "on"):
        one = session(SLAT_FLOW, SMALL["slat_flow"])
        with engaged(LEVER, one.sites, setting):
            loss = one.step().run()
        gradients = [p.grad for p in one.step().model.parameters() if p.grad is not None]
        found.append((loss, *gradients))
    assert len(found[0]) > 14
    assert all(map(torch.equal, *found))


def test_the_hidden_layer_that_is_fused_goes_through_it_too() -> None:
    one = session(SLAT_FLOW, SMALL["slat_flow"])
    with engaged(LEVER, one.sites, "on"), engaged(fused_mlp_hidden.LEVER, one.sites, "on"):
        one.exercise()
        assert LEVER.witness(one.sites[SITE])["train/tok_s"].endswith("FusedLinearBackward x 14")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_case_is_lossless_or_exact_and_has_power(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert found.parity in (ParityClass.BYTE_EXACT, ParityClass.LOSSLESS)
    assert found.powerless == ()
