"""The torch-free description: parameters, lengths, needs, targets, limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from experiments.workloads.base import DeviceFacts
from experiments.workloads.catalog import get
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.lengths import MEASURED_TOKENS, sample_lengths
from experiments.workloads.flow.workload import SLAT_FLOW
from levers.errors import BadParameter, UnknownName

CPU = DeviceFacts("cpu", "AMD EPYC", 8 << 30)
H200 = DeviceFacts("cuda", "NVIDIA H200", 141 << 30)


def test_the_catalog_knows_it() -> None:
    assert get("slat_flow") is SLAT_FLOW


def test_the_description_imports_no_torch() -> None:
    code = (
        "import sys, experiments.workloads.flow.workload, levers.segment_sum_broadcast;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parameters_survive_the_way_through_a_record() -> None:
    found = SLAT_FLOW.resolve({"size": "xl", "depth": "6", "optimizer": "adamw"}, H200)
    config = FlowConfig.of(found)
    assert (config.depth, config.optimizer, config.channels) == (6, "adamw", 1536)
    assert config.scalars() == dict(found)


def test_auto_resolves_by_device() -> None:
    on_cpu, on_cuda = SLAT_FLOW.resolve({}, CPU), SLAT_FLOW.resolve({}, H200)
    assert (on_cpu["attn"], on_cpu["matmul"]) == ("sdpa", "fp32")
    assert (on_cuda["attn"], on_cuda["matmul"]) == ("varlen", "bf16")


def test_the_digest_names_the_model_and_not_the_batch() -> None:
    digests = [
        SLAT_FLOW.resolve(one, CPU)["model_digest"]
        for one in ({}, {"bs": "4"}, {"depth": "5"}, {"steps": "3"})
    ]
    assert digests[0] == digests[1] == digests[3]
    assert digests[2] != digests[0]


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"steps": "0"}, "steps='0'"),
        ({"bs": "many"}, "bs='many'"),
        ({"profile": "flat"}, "lognormal | uniform | skewed | measured"),
        ({"optimizer": "sgd"}, "none | adamw"),
        ({"heads": "7"}, "no multiple of heads=7"),
        ({"heads": "16"}, "head dim 4"),
        ({"checkpointed": "9"}, "checkpointed=9 of depth=4"),
        ({"frozen": "4"}, "nothing to train"),
        ({"attn": "varlen"}, "needs CUDA"),
        ({"cap": "40000"}, "32768 voxels"),
        ({"profile": "measured", "bs": "9"}, "holds 8 samples"),
    ],
)
def test_a_bad_parameter_is_refused_with_the_cure(requested: dict[str, str], message: str) -> None:
    with pytest.raises(BadParameter) as caught:
        SLAT_FLOW.resolve(requested, CPU)
    assert message in str(caught.value)
    assert caught.value.cure


@pytest.mark.parametrize(
    ("requested", "close"), [({"dept": "3"}, "depth"), ({"size": "smal"}, "small")]
)
def test_an_unknown_name_gets_a_suggestion(requested: dict[str, str], close: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean '{close}'"):
        SLAT_FLOW.resolve(requested, CPU)


def test_lognormal_lengths_are_seeded_and_capped() -> None:
    first, again, other = (sample_lengths("lognormal", 400, 2222, 8192, s) for s in (1, 1, 2))
    assert first == again != other
    assert max(first) <= 8192
    assert min(first) >= 200
    assert 2300 < sum(first) / 400 < 2850


def test_the_other_profiles_are_what_their_names_say() -> None:
    assert sample_lengths("uniform", 3, 2700, 8192, 0) == (2700,) * 3
    assert sample_lengths("skewed", 8, 2222, 8192, 0) == (8192, *(1000,) * 7)
    assert sample_lengths("measured", 8, 2222, 8192, 0) == MEASURED_TOKENS
    assert sample_lengths("measured", 2, 1111, 8192, 0) == (2800, 932)


@pytest.mark.parametrize(("bs", "gigabytes"), [("8", 111.1), ("2", 45.4)])
def test_the_memory_estimate_meets_the_measured_peaks(bs: str, gigabytes: float) -> None:
    found = SLAT_FLOW.resolve({"size": "xl", "bs": bs}, H200)
    needs = SLAT_FLOW.needs(found, H200)
    assert needs.device_memory_bytes / 1e9 == pytest.approx(gigabytes, rel=0.02)
    assert 15 < needs.seconds_per_sample < 60


def test_recomputed_blocks_need_less_and_adam_needs_more() -> None:
    def memory(**more: str) -> int:
        found = SLAT_FLOW.resolve({"size": "xl", **more}, H200)
        return SLAT_FLOW.needs(found, H200).device_memory_bytes

    assert memory(checkpointed="15") < memory() < memory(optimizer="adamw")


def test_a_cpu_run_needs_no_device_memory() -> None:
    needs = SLAT_FLOW.needs(SLAT_FLOW.resolve({}, CPU), CPU)
    assert needs.device_memory_bytes == 0
    assert needs.host_memory_bytes < 2e9


def test_every_timed_axis_is_held_against_the_roofline() -> None:
    found = SLAT_FLOW.resolve({}, CPU)
    targets = SLAT_FLOW.targets(found, "roofline")
    names = {axis.name for axis in SLAT_FLOW.axes(found)}
    assert {one.axis for one in targets} < names
    assert {(one.kind, one.ratio) for one in targets} == {("roofline", 0.9)}
    assert SLAT_FLOW.targets(found, None) == ()


def test_the_mode_of_the_oracle_names_its_ceilings() -> None:
    assert "fp32" in SLAT_FLOW.oracle_mode(SLAT_FLOW.resolve({}, CPU), "roofline")
    with pytest.raises(UnknownName):
        SLAT_FLOW.oracle_mode(SLAT_FLOW.resolve({}, CPU), "sdpa")


def test_no_step_can_beat_the_stated_peak() -> None:
    found = SLAT_FLOW.resolve({"size": "xl"}, H200)
    limits = SLAT_FLOW.impossible(found, H200)
    assert limits["train/mfu_true"] == pytest.approx(100)
    assert limits["train/step_ms"] == pytest.approx(212.3, abs=0.1)
    assert SLAT_FLOW.impossible(SLAT_FLOW.resolve({}, CPU), CPU) == {}
