"""The decoder's logits against transformers on the same weights."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from experiments.workloads.decode.attention import PagedSplitAttention
from experiments.workloads.decode.caches import PagedCache
from experiments.workloads.decode.config import config_from, read_config
from experiments.workloads.decode.engine import DecodeEngine
from experiments.workloads.decode.sites import DecodeSites
from experiments.workloads.decode.sources import FolderSource
from experiments.workloads.decode.weights import (
    LazyDecoder,
    disassemble,
    load_weights,
    random_weights,
    save_weights,
)
from levers.errors import BadParameter

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
QWEN = {**SIZES, "model_type": "qwen3", "tie_word_embeddings": True, "rope_theta": 1e4}
LLAMA = {**SIZES, "model_type": "llama", "tie_word_embeddings": False, "rms_norm_eps": 1e-5}


def folder_of(path: Path, config: dict[str, Any], seed: int = 0) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    weights = random_weights(config_from(config, "test"), seed, CPU, torch.float32)
    named = disassemble(config_from(config, "test"), weights)
    noise = torch.Generator().manual_seed(seed)
    lively = {
        name: (x + 0.3 * torch.randn(x.shape, generator=noise)).contiguous()
        for name, x in named.items()
    }
    save_file(lively, str(path / "model.safetensors"), metadata={"format": "pt"})
    return path


def engine_of(folder: Path, slots: int = 2, capacity: int = 64) -> DecodeEngine:
    config = read_config(folder)
    sites = DecodeSites()
    source = FolderSource(config, folder, CPU, torch.float32)
    decoder = LazyDecoder(config, source, sites, CPU, torch.float32)
    cache = PagedCache(config, slots, capacity, 16, CPU, torch.float32)
    for slot in range(slots):
        cache.admit(slot)
    attention = PagedSplitAttention(config, cache, sites, 16, capacity, 48)
    return DecodeEngine(decoder, attention, slots, capacity)


@pytest.mark.parametrize("config", [QWEN, LLAMA], ids=["qwen3", "llama"])
def test_logits_of_prefill_and_decode_are_those_of_transformers(
    config: dict[str, Any], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM

        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = [int(i) for i in torch.randint(97, (40,), generator=torch.Generator().manual_seed(2))]
    engine = engine_of(folder)
    engine.plan(1)
    mine = [engine.prefill_logits(0, prompt).clone()]
    token, tokens = int(mine[0].argmax()), list(prompt)
    engine.prefill(0, prompt)
    for _ in range(8):
        tokens.append(token)
        token = int(engine.step(1)[0])
        mine.append(engine.logits_BV[0].clone())
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0, len(prompt) - 1 :]
    torch.testing.assert_close(torch.stack(mine), expected, rtol=1e-4, atol=1e-4)


def test_weights_survive_a_round_trip_through_safetensors(tmp_path: Path) -> None:
    config = config_from(LLAMA, "test")
    weights = random_weights(config, 3, CPU, torch.bfloat16)
    save_weights(config, weights, tmp_path / "model.safetensors")
    again = load_weights(config, tmp_path, CPU, torch.bfloat16)
    for name, tensor in disassemble(config, weights).items():
        assert torch.equal(tensor, disassemble(config, again)[name]), name


def test_random_weights_are_the_same_for_the_same_seed() -> None:
    config = config_from(QWEN, "test")
    first, second, other = (random_weights(config, s, CPU, torch.float32) for s in (1, 1, 2))
    assert torch.equal(first.embed_VC, second.embed_VC)
    assert not torch.equal(first.embed_VC, other.embed_VC)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, QWEN)
    with pytest.raises(BadParameter, match="belong to different models"):
        load_weights(config_from({**QWEN, "vocab_size": 98}, "x"), folder, CPU, torch.float32)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, QWEN)
    with pytest.raises(BadParameter, match=r"model\.layers\.2\.input_layernorm\.weight"):
        load_weights(config_from({**QWEN, "num_hidden_layers": 3}, "x"), folder, CPU, torch.float32)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(BadParameter, match="cannot be read"):
        load_weights(config_from(QWEN, "x"), tmp_path, CPU, torch.float32)
