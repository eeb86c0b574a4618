"""The op cases of the fused decode levers: what they cover, and how each arm stands to fp64."""

from __future__ import annotations

import pytest

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from levers.base import OpCase
from levers.decode_lever import DecodeLever
from levers.fused_block import LEVER as FUSED_BLOCK
from levers.fused_chain import LEVER as FUSED_CHAIN
from levers.policy import ParityClass
from levers.qk_norm_rope import LEVER as QK_NORM_ROPE

EXACT = [
    pytest.param(case, id=f"{lever.name}: {case.name}")
    for lever in (FUSED_CHAIN, QK_NORM_ROPE)
    for case in lever.op_cases("on", "cpu")
]
BLOCK = FUSED_BLOCK.op_cases("on", "cpu")
BAR = Bar(tolerance=None, byte_exact=False, repeats=2)


@pytest.mark.parametrize("case", EXACT)
def test_the_exact_levers_give_the_bits_of_the_separate_operations(case: OpCase) -> None:
    found = check_case(case, 0, BAR)
    assert found.status == "passed", found.fault
    assert found.parity is ParityClass.BYTE_EXACT
    assert not found.powerless


@pytest.mark.parametrize("case", BLOCK[::4], ids=[case.name for case in BLOCK[::4]])
def test_the_fused_block_is_no_further_from_fp64_than_separate_operations(case: OpCase) -> None:
    found = check_case(case, 0, BAR)
    assert found.status == "passed", found.fault
    assert not found.powerless


@pytest.mark.parametrize("lever", [FUSED_CHAIN, QK_NORM_ROPE, FUSED_BLOCK])
def test_rows_of_every_step_and_odd_values_are_covered(lever: DecodeLever) -> None:
    cases = lever.op_cases("on", "cpu")
    names = " | ".join(case.name for case in cases)
    assert len({case.name for case in cases}) == len(cases)
    rows = [" x 128" if lever is FUSED_CHAIN else " tokens" if lever is QK_NORM_ROPE else " rows"]
    for count in (1, 2, 3, 7, 16, 31, 32):
        assert f"{count}{rows[0]}" in names
    for word in ("large mean", "far below eps", "subnormal", "NaN and Inf"):
        assert word in names
    assert sum(case.masks is not None for case in cases) >= 1


def test_the_sizes_of_both_large_models_are_covered_on_cuda() -> None:
    for lever in (QK_NORM_ROPE, FUSED_BLOCK):
        names = " | ".join(case.name for case in lever.op_cases("on", "cuda:0"))
        for model in ("shipped", "Qwen3-0.6B", "Qwen3-4B", "Llama"):
            assert model in names
    assert "32 x 2560, bfloat16" in " | ".join(
        case.name for case in FUSED_CHAIN.op_cases("on", "cuda:0")
    )
