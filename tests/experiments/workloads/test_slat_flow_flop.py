"""Closed-form FLOPs against the published sizes and against PyTorch's own counter."""

from __future__ import annotations

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from experiments.workloads.flow.batch import flow_loss, make_batch
from experiments.workloads.flow.flop import StepFlop, step_flop
from experiments.workloads.flow.peaks import dense_peak_flop_per_s
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.resolving import resolve
from experiments.workloads.flow.sites import Sites
from experiments.workloads.flow.sizes import SLAT_SMALL
from experiments.workloads.flow.step import build_model

SECOND = {"channels": 1536, "mlp": 8192, "cond_channels": 1024, "depth": 30}
FIRST = {"channels": 1024, "mlp": 4096, "cond_channels": 1024, "depth": 24}
H200 = 989.4e12


@pytest.mark.parametrize(
    ("lengths", "cond_tokens", "sizes", "matmul_tflop", "attention_tflop"),
    [
        ((4096,) * 8, 1374, FIRST, 72.6, 52.9),
        ((4096,) * 8, 1029, SECOND, 236.6, 92.9),
        ((4096,) * 2, 2056, SECOND, 60.3, 27.9),
        ((2222,) * 8, 2056, SECOND, 135.1, 42.1),
        ((2700,) * 8, 2056, SECOND, 162.2, 56.8),
        ((2700,) * 8, 2056, {**SECOND, "frozen": 24}, 118.9, 56.8),
    ],
)
def test_the_closed_form_gives_the_published_sizes(
    lengths: tuple[int, ...],
    cond_tokens: int,
    sizes: dict[str, int],
    matmul_tflop: float,
    attention_tflop: float,
) -> None:
    flop = step_flop(lengths, cond_tokens, **sizes)
    assert flop.matmul_flop / 1e12 == pytest.approx(matmul_tflop, abs=0.06)
    assert flop.attention_flop / 1e12 == pytest.approx(attention_tflop, abs=0.06)


@pytest.mark.parametrize(("mfu", "milliseconds"), [(0.10, 1791), (0.238, 752), (0.30, 597)])
def test_the_utilisation_gives_the_published_step_times(mfu: float, milliseconds: float) -> None:
    flop = step_flop((2222,) * 8, 2056, **SECOND)
    assert flop.mfu_true(milliseconds / 1e3, H200) == pytest.approx(mfu, rel=2e-3)
    assert flop.mfu_matmul(1.0, H200) < flop.mfu_true(1.0, H200)


def test_the_lengths_count_and_not_their_mean() -> None:
    even, skewed = (step_flop(n, 64, **SECOND) for n in ((1000, 1000), (1999, 1)))
    assert even.matmul_flop == skewed.matmul_flop
    assert skewed.attention_flop > 1.8 * even.attention_flop


def test_the_ceiling_adds_both_kinds_of_work() -> None:
    assert StepFlop(6e12, 2e12).ceiling_s(3e12, 1e12) == 4.0


def test_the_closed_form_agrees_with_pytorchs_counter_on_the_reference_step() -> None:
    config = resolve({"bs": "3", "depth": "2", "profile": "skewed", "cap": "96"}, "cpu")
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


def test_a_device_is_known_by_the_words_of_its_name() -> None:
    assert dense_peak_flop_per_s("NVIDIA H200") == H200
    assert dense_peak_flop_per_s("NVIDIA H100 80GB HBM3") == H200
    assert dense_peak_flop_per_s("NVIDIA A100-SXM4-80GB") == 312e12
    assert dense_peak_flop_per_s("NVIDIA L40S") == 362.05e12
    assert dense_peak_flop_per_s("NVIDIA L4") == 121e12
    assert dense_peak_flop_per_s("AMD EPYC") is None


def test_the_small_size_is_a_narrow_form_of_the_same_step() -> None:
    assert SLAT_SMALL.flop.total_flop < 20e9
