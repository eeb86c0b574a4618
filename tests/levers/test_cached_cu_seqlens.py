"""The lever of the kept row offsets: declaration, hooks, witness, and its op cases."""

from __future__ import annotations

import pytest
import torch

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads.flow import original
from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.sites import Sites
from levers.base import engaged
from levers.cached_cu_seqlens import LENGTHS, LEVER, SITE
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass

CASES = LEVER.op_cases("on", "cpu")


def test_it_is_acceptable_and_claims_the_same_bytes() -> None:
    assert complaints(LEVER) == ()
    policy = LEVER.policy(SampleFacts("cuda", "slat_flow"))
    assert policy.claims is ParityClass.BYTE_EXACT
    assert policy.demanded is ParityClass.LOSSLESS


def test_attention_without_offsets_is_unmet() -> None:
    with_offsets = SampleFacts("cuda", "slat_flow", {"attn": "varlen"}, (SITE,))
    without = SampleFacts("cpu", "slat_flow", {"attn": "sdpa"}, (SITE,))
    assert LEVER.unmet(with_offsets, "on") == ()
    assert "attn=sdpa" in LEVER.unmet(without, "on")[0]
    assert LEVER.unmet(without, "off") == ()


def test_the_step_gets_the_layouts_tensor_and_the_witness_sees_it() -> None:
    sites = Sites(PRECISIONS["bf16"], "varlen")
    layout = PackedLayout.of((3, 1, 4), "cpu")
    sites.watch = ("train/tok_s",)
    rebuilt = sites.cu_seqlens(layout)
    assert torch.equal(rebuilt, layout.cu_seqlens)
    assert rebuilt is not layout.cu_seqlens
    assert LEVER.witness(sites.by_name[SITE]) == {"train/tok_s": "rebuilt x 1"}
    sites.by_name[SITE].forget()
    with engaged(LEVER, sites.by_name, "on"):
        assert sites.cu_seqlens(layout) is layout.cu_seqlens
        assert sites.cu_seqlens(layout) is layout.cu_seqlens
    assert LEVER.witness(sites.by_name[SITE]) == {"train/tok_s": "kept x 2"}
    assert sites.by_name[SITE].launch is original.cu_seqlens


@pytest.mark.parametrize("case", CASES, ids=list(LENGTHS))
def test_every_case_is_byte_exact_and_has_power(case) -> None:  # type: ignore[no-untyped-def]
    result = check_case(case, 0, Bar(byte_exact=True))
    assert result.status == "passed"
    assert result.parity is ParityClass.BYTE_EXACT
    assert result.powerless == ()
