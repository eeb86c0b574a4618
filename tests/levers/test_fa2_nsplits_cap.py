from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from levers.base import Site, engaged
from levers.errors import BadParameter, BadSetting
from levers.fa2_nsplits_cap import CONTIGUOUS_SITE, LEVER, SITE
from levers.kernels.split_heuristic import DecodeShape, upstream_splits
from levers.kernels.split_kv_rules import CappedRule
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass


def shape(batch: int) -> DecodeShape:
    return DecodeShape(batch, kv_heads=8, kv_tokens=896, kv_block=128, sm_count=48)


def facts(
    device_type: str, sites: tuple[str, ...] = LEVER.touches, **parameters: object
) -> SampleFacts:
    return SampleFacts(device_type, "decode", parameters, sites)


def rules(launch: Callable[[DecodeShape], int] = upstream_splits) -> dict[str, Site]:
    return {name: Site(name, launch) for name in LEVER.touches}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("off", [7, 4, 3, 3]), ("auto", [6, 3, 1, 1]), ("3", [3, 3, 3, 3]), ("1", [1, 1, 1, 1])],
)
def test_each_setting_gives_the_published_split_counts(setting: str, expected: list[int]) -> None:
    sites = rules()
    with engaged(LEVER, sites, setting):
        for site in sites.values():
            assert [site.launch(shape(c)) for c in (1, 2, 4, 8)] == expected
    assert all(site.launch is upstream_splits for site in sites.values())


def test_the_cap_wraps_the_rule_that_it_finds() -> None:
    sites = rules(lambda launch: 5)
    for setting, expected in (("4", 4), ("128", 5)):
        with engaged(LEVER, sites, setting):
            assert [site.launch(shape(1)) for site in sites.values()] == [expected] * 2


def test_a_backend_with_a_rule_of_its_own_takes_the_cap_itself() -> None:
    launch = replace(shape(1), backend="fa3")
    for setting, expected in (("off", 0), ("auto", 6), ("3", 3), ("128", 128)):
        sites = rules()
        with engaged(LEVER, sites, setting):
            assert sites[CONTIGUOUS_SITE].launch(launch) == expected


def test_tuned_takes_the_table_of_the_device_and_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levers.fa2_nsplits_cap._device_name", lambda: "NVIDIA H200")
    launch = DecodeShape(1, 8, 4096, 128, 132, backend="fa2", query_heads=32)
    sites = rules()
    with engaged(LEVER, sites, "tuned"):
        assert sites[SITE].launch(launch) == 16
        assert upstream_splits(launch) != 16
        with pytest.raises(BadParameter, match="no measured split table of fa9"):
            sites[SITE].launch(replace(launch, backend="fa9"))


def test_tuned_is_unmet_where_nothing_was_measured() -> None:
    (reason,) = LEVER.unmet(facts("cpu"), "tuned")
    assert "no split table was measured on a cpu" in reason
    (reason,) = LEVER.unmet(facts("cuda", sm_count=48), "tuned")
    assert "benchmarks/split_table.py" in reason
    assert LEVER.unmet(facts("cuda", sm_count=132), "tuned") == ()
    sites = rules()
    with engaged(LEVER, sites, "tuned"), pytest.raises(BadParameter, match="on cpu") as error:
        sites[SITE].launch(shape(1))
    assert "benchmarks/split_table.py" in error.value.cure


def test_the_rule_says_for_which_backend_it_was_asked() -> None:
    assert CappedRule(upstream_splits, "3", lambda: "cpu").backend == ""


@pytest.mark.parametrize("setting", ["0", "129", "-1", "fast", "1.5"])
def test_settings_out_of_range_are_refused(setting: str) -> None:
    with pytest.raises(BadSetting, match=r"off \| auto \| tuned \| 1\.\.128"):
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


@pytest.mark.parametrize("name", LEVER.touches)
def test_the_witness_of_each_site_names_the_split_counts_per_axis(name: str) -> None:
    site = Site(name, upstream_splits)
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
