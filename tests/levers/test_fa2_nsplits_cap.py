from __future__ import annotations

import pytest
import torch

from levers.base import Site, engaged
from levers.errors import BadSetting
from levers.fa2_nsplits_cap import LEVER, SITE
from levers.kernels.split_heuristic import DecodeShape, upstream_splits
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass


def shape(batch: int) -> DecodeShape:
    return DecodeShape(batch, kv_heads=8, kv_tokens=896, kv_block=128, sm_count=48)


def facts(device_type: str, sites: tuple[str, ...] = (SITE,)) -> SampleFacts:
    return SampleFacts(device_type, "decode", {}, sites)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("off", [7, 4, 3, 3]), ("auto", [6, 3, 1, 1]), ("3", [3, 3, 3, 3]), ("1", [1, 1, 1, 1])],
)
def test_each_setting_gives_the_published_split_counts(setting: str, expected: list[int]) -> None:
    site = Site(SITE, upstream_splits)
    with engaged(LEVER, {SITE: site}, setting):
        assert [site.launch(shape(c)) for c in (1, 2, 4, 8)] == expected
    assert site.launch is upstream_splits


def test_the_cap_wraps_the_rule_that_it_finds() -> None:
    site = Site(SITE, lambda launch: 5)
    with engaged(LEVER, {SITE: site}, "4"):
        assert site.launch(shape(1)) == 4
    with engaged(LEVER, {SITE: site}, "128"):
        assert site.launch(shape(1)) == 5


@pytest.mark.parametrize("setting", ["0", "129", "-1", "fast", "1.5"])
def test_settings_out_of_range_are_refused(setting: str) -> None:
    with pytest.raises(BadSetting, match=r"off \| auto \| 1\.\.128"):
        LEVER.settings.check(LEVER.name, setting)


def test_it_claims_lossless_on_every_device() -> None:
    for device_type in ("cpu", "cuda"):
        assert LEVER.policy(facts(device_type)).claims is ParityClass.LOSSLESS


def test_the_policy_guards_tails_everywhere_and_memory_on_cuda_alone() -> None:
    cpu, cuda = LEVER.policy(facts("cpu")), LEVER.policy(facts("cuda"))
    assert cpu.guard_for("memory/peak_bytes") is None
    memory, throughput = cuda.guard_for("memory/peak_bytes"), cuda.guard_for("decode/tok_s/c8")
    assert memory is not None
    assert memory.margin == 0.01
    assert throughput is not None
    assert throughput.margin == 0.01
    for policy in (cpu, cuda):
        for axis in ("decode/ttft_ms/p95", "decode/itl_ms/p95"):
            guard = policy.guard_for(axis)
            assert guard is not None
            assert guard.margin == 0.03
    on_cpu = cpu.guard_for("decode/tok_s/c1")
    assert on_cpu is not None
    assert on_cpu.margin == 0.03


def test_an_attention_without_a_split_rule_is_unmet() -> None:
    assert LEVER.unmet(facts("cuda", sites=()), "auto")
    assert not LEVER.unmet(facts("cuda", sites=()), "off")
    assert not LEVER.unmet(facts("cuda"), "auto")


def test_the_witness_names_the_split_counts_per_axis() -> None:
    site = Site(SITE, upstream_splits)
    site.observe("decode/tok_s/c1", "num_splits=7")
    site.observe("decode/tok_s/c1", "num_splits=7")
    site.observe("decode/tok_s/c2", "num_splits=4")
    assert LEVER.witness(site) == {
        "decode/tok_s/c1": "num_splits=7",
        "decode/tok_s/c2": "num_splits=4",
    }


def test_the_declaration_has_no_complaints() -> None:
    assert complaints(LEVER) == ()


CASES = LEVER.op_cases("auto", "cpu")


def test_the_cases_cover_gqa_ratios_lengths_and_adversarial_values() -> None:
    names = " ".join(case.name for case in CASES)
    assert len(CASES) >= 24
    assert len({case.name for case in CASES}) == len(CASES)
    for word in ("1 q heads", "2 q heads", "4 q heads", "one token", "ragged", "cap-long"):
        assert word in names
    for word in ("large means", "cancelling", "subnormal", "NaN", "Inf", "masked block"):
        assert word in names


@pytest.mark.parametrize("case", CASES[::5], ids=lambda case: case.name)
def test_both_arms_of_a_case_are_near_truth_and_repeat_themselves(case) -> None:  # type: ignore[no-untyped-def]
    inputs = case.inputs(5)
    (truth,) = case.truth(inputs)
    scale = float(truth[torch.isfinite(truth)].abs().max())
    bound = (1e-5 if inputs[0].dtype is torch.float32 else 1e-2) * scale
    for arm in (case.reference, case.candidate, *case.reorderings):
        first, second = case.outputs(inputs), case.outputs(inputs)
        arm(inputs, first)
        arm(inputs, second)
        assert torch.equal(torch.nan_to_num(first[0]), torch.nan_to_num(second[0]))
        error = (first[0].double() - truth)[torch.isfinite(truth)]
        assert float(error.abs().max()) <= bound


def test_the_cases_of_two_settings_have_the_same_names() -> None:
    assert [case.name for case in LEVER.op_cases("3", "cpu")] == [case.name for case in CASES]
