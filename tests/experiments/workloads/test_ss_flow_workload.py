"""The dense flow's torch-free description: parameters, FLOPs against PyTorch's counter, memory."""

from __future__ import annotations

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.batch import flow_loss, make_batch
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.memory import TARGET_SHARE, largest_batch, step_bytes
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.resolving import resolve
from experiments.workloads.flow.sites import Sites
from experiments.workloads.flow.step import build_model
from experiments.workloads.flow.workload import SLAT_FLOW, SS_FLOW
from levers.errors import BadParameter, UnknownName

CPU = DeviceFacts("cpu", "AMD EPYC", 8 << 30)
H200 = DeviceFacts("cuda", "NVIDIA H200", 141 << 30)


def test_the_large_size_is_the_published_one() -> None:
    config = FlowConfig.of(SS_FLOW.resolve({"size": "xl"}, H200))
    assert config.lengths == (4096,) * 8
    assert (config.cond_tokens, config.latent, config.depth, config.channels) == (1029, 8, 30, 1536)
    assert (config.attn, config.matmul) == ("sdpa", "bf16")
    assert config.flop.matmul_flop / 1e12 == pytest.approx(236.6, abs=0.06)
    assert config.flop.attention_flop / 1e12 == pytest.approx(92.9, abs=0.06)


@pytest.mark.parametrize("name", ["profile", "tokens", "cap", "lengths_seed"])
def test_what_follows_from_the_grid_cannot_be_set(name: str) -> None:
    with pytest.raises(UnknownName, match=f"parameter of ss_flow '{name}'"):
        SS_FLOW.resolve({name: "4"}, CPU)


def test_the_grid_sets_the_tokens_of_both() -> None:
    assert FlowConfig.of(SS_FLOW.resolve({"grid": "5"}, CPU)).lengths == (125,) * 8
    wide = SLAT_FLOW.resolve({"size": "xl", "grid": "64", "cap": "32768", "bs": "2"}, H200)
    assert wide["cap"] == 32768
    for text in ("0", "²", "9" * 5000):
        with pytest.raises(BadParameter, match=f"ss_flow: grid='{text}'"):
            SS_FLOW.resolve({"grid": text}, CPU)


def test_parameters_of_an_older_record_get_their_neutral_values() -> None:
    found = dict(SLAT_FLOW.resolve({}, CPU))
    for name in ("grid", "accumulate", "curve_steps", "curve_depth"):
        del found[name]
    config = FlowConfig.of(found)
    assert (config.grid, config.accumulate, config.curve_steps, config.curve_depth) == (
        32,
        1,
        16,
        2,
    )


def test_the_closed_form_agrees_with_pytorchs_counter_on_the_dense_step() -> None:
    config = resolve({"bs": "2", "depth": "2", "grid": "4"}, "cpu", "ss_flow")
    precision = PRECISIONS[config.matmul]
    model = build_model(config, Sites(precision, "sdpa"), precision, 0, "cpu")
    batch = make_batch(config, 0, "cpu")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        flow_loss(model, batch).backward()
    tokens, c = sum(config.lengths), config.channels
    # Outside the blocks: embedding, projection, and what is done once for a sample. The condition
    # needs no gradient of its own here, so its projection lacks the product for it.
    ends = 6 * 2 * tokens * config.latent * c - 2 * tokens * config.latent * c
    per_sample = 3 * 2 * config.bs * (256 * c + c * c + 6 * c * c) - 2 * config.bs * 256 * c
    condition = config.bs * config.cond_tokens * 4 * config.cond_channels * c * config.depth
    expected = config.flop.total_flop - condition + ends + per_sample
    assert counter.get_total_flops() == expected


def test_the_memory_estimate_meets_the_measured_peak() -> None:
    needs = SS_FLOW.needs(SS_FLOW.resolve({"size": "xl", "bs": "2"}, H200), H200)
    assert needs.device_memory_bytes / 1e9 == pytest.approx(44.1, rel=0.01)


@pytest.mark.parametrize("workload", [SLAT_FLOW, SS_FLOW])
def test_the_batch_that_fits_is_the_last_one_under_the_share(workload) -> None:  # type: ignore[no-untyped-def]
    more = {"profile": "uniform", "tokens": "2700"} if workload is SLAT_FLOW else {}

    def needed(bs: int) -> int:
        asked = {"size": "xl", "optimizer": "adamw", "bs": str(bs), **more}
        return step_bytes(FlowConfig.of(workload.resolve(asked, H200)))

    config = FlowConfig.of(workload.resolve({"size": "xl", "optimizer": "adamw", **more}, H200))
    fits, room = largest_batch(config, H200.memory_bytes), TARGET_SHARE * H200.memory_bytes
    assert needed(fits) <= room < needed(fits + 1)
    assert largest_batch(config, 1 << 30) == 0


def test_micro_batches_need_the_memory_of_one_of_them() -> None:
    whole, split = (
        step_bytes(FlowConfig.of(SS_FLOW.resolve({"size": "xl", **more}, H200)))
        for more in ({"bs": "24"}, {"bs": "8", "accumulate": "3"})
    )
    single = step_bytes(FlowConfig.of(SS_FLOW.resolve({"size": "xl", "bs": "8"}, H200)))
    assert split == single < whole
