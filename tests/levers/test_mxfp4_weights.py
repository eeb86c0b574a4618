from __future__ import annotations

import math

import pytest
import torch

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.session import DecodeSession, open_session
from levers.base import OpCase, Site, engaged
from levers.fused_block import LEVER as FUSED_BLOCK
from levers.kernels.mxfp4_matrix import Mxfp4Weight
from levers.lint import SampleFacts, complaints
from levers.mxfp4_weights import (
    LEVER,
    NEAR_TIE_NAT,
    QUALITY,
    QUALITY_MARGIN,
    SITE,
    TOLERANCE,
    WEIGHT_BYTES,
)
from levers.policy import ParityClass

CPU = DeviceFacts(device="cpu", kind="test cpu", memory_bytes=8 << 30)
SHORT = {
    "concurrency": "1,2", "prompt_tokens": "32", "output_tokens": "24", "rounds": "2",
    "round_steps": "20", "ttft_tokens": "16", "ttft_repeats": "20",
}  # fmt: skip


def opened(**changes: str) -> DecodeSession:
    return open_session(
        workloads.get("decode").resolve({**SHORT, **changes}, CPU), "cpu", 3, "engine"
    )


def keep(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def facts(device_type: str = "cpu", **parameters: str) -> SampleFacts:
    return SampleFacts(device_type, "decode", parameters, (SITE,))


def test_it_quantises_what_has_a_form_and_leaves_the_rest() -> None:
    site = Site(SITE, keep)
    with engaged(LEVER, {SITE: site}, "on"):
        stored = site.launch("qkv", torch.randn(48, 64))
        odd = torch.randn(48, 40)
        assert site.launch("o", odd) is odd
    assert isinstance(stored, Mxfp4Weight)
    assert stored.shape == (48, 64)
    assert site.launch is keep


def test_the_policy_lets_quality_and_prefill_pay_within_bounds() -> None:
    cpu, cuda = LEVER.policy(facts(quality="on")), LEVER.policy(facts("cuda", quality="on"))
    for policy in (cpu, cuda):
        assert policy.claims is ParityClass.TOLERATED
        quality = policy.guard_for(QUALITY)
        assert quality is not None
        assert quality.margin == QUALITY_MARGIN
        assert policy.is_primary(WEIGHT_BYTES)
        assert policy.near_tie_share == 1.0
        assert policy.near_tie_gap_nat == NEAR_TIE_NAT == math.log(20)
    assert cuda.guard_for("memory/peak_bytes") is not None
    assert cpu.guard_for("memory/peak_bytes") is None
    assert LEVER.policy(facts("cuda")).guard_for(QUALITY) is None


def test_a_trained_model_is_unmet_without_its_quality_and_a_random_one_has_none() -> None:
    (reason,) = LEVER.unmet(facts(model="shipped", quality="off"), "on")
    assert "--set quality=on" in reason
    assert not LEVER.unmet(facts(model="shipped", quality="on"), "on")
    assert not LEVER.unmet(facts(model="random-4b", quality="off"), "on")
    assert not LEVER.unmet(facts(model="shipped", quality="off"), "off")


def test_the_declaration_has_no_complaints() -> None:
    assert complaints(LEVER) == ()


CASES = LEVER.op_cases("on", "cpu")


def test_the_cases_cover_rows_tiles_epilogues_and_adversarial_values() -> None:
    names = " ".join(case.name for case in CASES)
    assert len({case.name for case in CASES}) == len(CASES) >= 28
    for word in ("1 rows", "31 rows", "65 rows", "bias", "gate", "cancelling", "tiny", "wild"):
        assert word in names


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_inside_the_tolerance_and_has_power(case: OpCase) -> None:
    result = check_case(case, 0, Bar(tolerance=TOLERANCE.relative_error))
    assert result.status == "passed", result.fault
    assert result.parity is not ParityClass.BROKEN
    assert result.powerless == ()


def test_the_shipped_model_is_stored_in_four_bits_and_back_after_it() -> None:
    session = opened(quality="on", prompt_tokens="512")
    session.warm_up()
    plain = dict(session._fixed)
    session.renew()
    with engaged(LEVER, session.sites, "on"):
        session.warm_up()
        packed = dict(session._fixed)
        session.exercise()
        plans = dict(LEVER.witness(session.sites[SITE]))
    assert plain[WEIGHT_BYTES] > 3 * packed[WEIGHT_BYTES]
    assert 0.0 < abs(packed[QUALITY] - plain[QUALITY]) < 0.1 * plain[QUALITY]
    assert plans == {f"decode/tok_s/c{c}": "weights=Mxfp4Weight" for c in (1, 2)}
    session.sites[SITE].forget()
    session.renew()
    session.exercise()
    assert LEVER.witness(session.sites[SITE])["decode/tok_s/c1"] == "weights=float32"


def test_a_fused_block_takes_the_packed_matrices() -> None:
    """Greedy tokens are those of the packed matrices in the original block."""
    session, want = opened(), {"want": "tokens", "prompts": 3, "max_tokens": 6}
    with engaged(LEVER, session.sites, "on"):
        apart = session.outputs(want)
        session.renew()
        with engaged(FUSED_BLOCK, session.sites, "on"):
            together = session.outputs(want)
    assert together.streams == apart.streams
