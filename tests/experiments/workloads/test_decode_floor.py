"""The bandwidth floor: which bytes a step reads, and at which rate."""

from __future__ import annotations

import pytest
import torch

from experiments.workloads.decode import floor
from experiments.workloads.decode.config import NAMED, ModelConfig
from experiments.workloads.decode.model import Weights
from experiments.workloads.decode.weights import random_weights

CPU = torch.device("cpu")
TIED = ModelConfig("qwen3", 61, 16, 24, 2, 4, 2, 8)
UNTIED = ModelConfig("llama", 61, 16, 24, 2, 4, 2, 8, tied_embeddings=False, qk_norm=False)


def weights(config: ModelConfig) -> Weights:
    return random_weights(config, 0, CPU, torch.bfloat16)


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_a_step_reads_every_stored_weight_but_a_separate_embedding(config: ModelConfig) -> None:
    found = weights(config)
    assert floor.stored_bytes(found) == 2 * config.parameters
    assert floor.read_bytes(found) == config.weight_bytes_read


def test_cached_tokens_count_in_the_dtype_of_the_cache() -> None:
    assert floor.kv_bytes(TIED, 10, torch.bfloat16) == 10 * TIED.kv_bytes_per_token
    assert floor.kv_bytes(TIED, 10, torch.float32) == 20 * TIED.kv_bytes_per_token


def test_the_floor_of_the_named_sizes_is_that_of_their_bytes() -> None:
    step_ms = {
        name: 1e3 * config.weight_bytes_read / floor.COPY_BYTES_PER_S["H200"]
        for name, config in NAMED.items()
    }
    assert step_ms["random-0.6b"] == pytest.approx(0.28, abs=0.01)
    assert step_ms["random-4b"] == pytest.approx(1.87, abs=0.01)


def test_a_copy_has_a_rate() -> None:
    assert 1e8 < floor.copy_rate(CPU, 0) < 1e13
