from __future__ import annotations

import pytest

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.traffic import optimiser_bytes, row_bytes
from experiments.workloads.flow.workload import SLAT_FLOW

CPU = DeviceFacts("cpu", "cpu", 8 << 30)
TINY = {"depth": "2", "bs": "3", "tokens": "24", "cap": "64"}


def config(**more: str) -> FlowConfig:
    return FlowConfig.of(SLAT_FLOW.resolve({**TINY, **more}, CPU))


def test_the_row_wise_work_is_a_sum_over_tokens_and_blocks() -> None:
    one, two = config(depth="1"), config(depth="2")
    assert row_bytes(two) == 2 * row_bytes(one)
    tokens, samples = sum(one.lengths), len(one.lengths)
    latent = tokens * (43 * one.channels + 5 * one.mlp)
    condition = samples * one.cond_tokens * 5 * one.channels
    assert row_bytes(one) == 2 * (latent + condition)


def test_what_is_recomputed_moves_no_useful_bytes() -> None:
    assert row_bytes(config(checkpointed="2")) == row_bytes(config(checkpointed="0"))


def test_an_update_moves_seven_fp32_numbers_a_trained_parameter() -> None:
    whole = config(optimizer="adamw")
    assert optimiser_bytes(whole) == pytest.approx(28 * whole.parameter_count)
    assert optimiser_bytes(config(optimizer="none")) == 0.0
    half = config(optimizer="adamw", frozen="1")
    blocks = half.parameter_count - 6 * half.channels**2
    assert optimiser_bytes(half) == pytest.approx(28 * blocks / 2)
