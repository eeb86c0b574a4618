"""The decoder's logits against transformers on the same weights."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.workloads.decode.attention import SplitAttention
from experiments.workloads.decode.caches import ContiguousCache, PagedCache
from experiments.workloads.decode.config import config_from, read_config
from experiments.workloads.decode.engine import DecodeEngine
from experiments.workloads.decode.operations import rope_frequencies
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
LLAMA3: dict[str, Any] = {
    **LLAMA,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
"""Llama 3.1's own factors; the original context is short, so that all three ranges are met."""


def folder_of(
    path: Path, config: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32
) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    weights = random_weights(config_from(config, "test"), seed, CPU, torch.float32)
    named = disassemble(config_from(config, "test"), weights)
    noise = torch.Generator().manual_seed(seed)
    lively = {
        name: (x + 0.3 * torch.randn(x.shape, generator=noise)).to(dtype).contiguous()
        for name, x in named.items()
    }
    save_file(lively, str(path / "model.safetensors"), metadata={"format": "pt"})
    return path


def engine_of(
    folder: Path, kv: str = "paged", dtype: torch.dtype = torch.float32, capacity: int = 64
) -> DecodeEngine:
    config, slots = read_config(folder), 2
    sites = DecodeSites()
    source = FolderSource(config, folder, CPU, dtype)
    decoder = LazyDecoder(config, source, sites, CPU, dtype)
    cache: PagedCache | ContiguousCache
    if kv == "paged":
        cache = PagedCache(config, slots, capacity, 16, CPU, dtype)
        for slot in range(slots):
            cache.admit(slot)
    else:
        cache = ContiguousCache(config, slots, capacity, CPU, dtype)
    attention = SplitAttention(config, cache, sites, 16, capacity, 48)
    return DecodeEngine(decoder, attention, slots, capacity)


def theirs_of(folder: Path, dtype: torch.dtype) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def forced(engine: DecodeEngine, tokens: list[int], prompt: int) -> torch.Tensor:
    """Logits after the prompt and after each later token, which a step is given."""
    engine.plan(1)
    found = [engine.prefill_logits(0, tokens[:prompt]).clone()]
    for position in range(prompt, len(tokens)):
        engine.tokens_B[0], engine.positions_B[0] = tokens[position], position
        engine.step(1)
        found.append(engine.logits_BV[0].clone())
    return torch.stack(found)


PROMPT, STEPS = 40, 8
TOKENS = torch.randint(97, (PROMPT + STEPS,), generator=torch.Generator().manual_seed(2)).tolist()
FAMILIES = {"qwen3": QWEN, "llama": LLAMA, "llama3": LLAMA3}
each_family = pytest.mark.parametrize("family", FAMILIES)
each_cache = pytest.mark.parametrize("kv", ["paged", "contiguous"])


@each_family
@each_cache
def test_logits_of_prefill_and_decode_are_those_of_transformers(
    family: str, kv: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, FAMILIES[family])
    mine = forced(engine_of(folder, kv), TOKENS, PROMPT)
    with torch.inference_mode():
        expected = theirs_of(folder, torch.float32)(torch.tensor([TOKENS])).logits[0, PROMPT - 1 :]
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


@each_family
@each_cache
def test_in_bf16_the_logits_are_as_near_to_the_truth_as_those_of_transformers(
    family: str, kv: str, tmp_path: Path
) -> None:
    """Truth is fp32 arithmetic on the same bf16 weights; both implementations round on the way."""
    folder = folder_of(tmp_path, FAMILIES[family], dtype=torch.bfloat16)
    tokens = torch.tensor([TOKENS])
    with torch.inference_mode():
        truth = theirs_of(folder, torch.float32)(tokens).logits[0, PROMPT - 1 :]
        theirs = theirs_of(folder, torch.bfloat16)(tokens).logits[0, PROMPT - 1 :].float()
    mine = forced(engine_of(folder, kv, torch.bfloat16), TOKENS, PROMPT).float()
    scale = truth.norm()
    error, allowed = (mine - truth).norm() / scale, (theirs - truth).norm() / scale
    assert 0.0 < float(error) <= 1.4 * float(allowed) < 0.05


def test_positions_beyond_the_original_context_turn_as_in_transformers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA3)
    inner = theirs_of(folder, torch.float32).model.rotary_emb
    torch.testing.assert_close(
        rope_frequencies(read_config(folder)), inner.inv_freq, rtol=1e-6, atol=0.0
    )
    plain = rope_frequencies(config_from(LLAMA, "test"))
    stretched = plain / inner.inv_freq
    assert stretched[0] == 1.0
    assert stretched[-1] == pytest.approx(LLAMA3["rope_scaling"]["factor"])


def test_a_configuration_with_scaled_positions_survives_being_written() -> None:
    config = config_from(LLAMA3, "test")
    assert config.rope_scaling is not None
    assert config_from(config.to_json(), "again") == config


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


def sharded(folder: Path) -> list[Path]:
    """Cut the folder's file into shards with an index, as large checkpoints are stored."""
    whole = folder / "model.safetensors"
    named = load_file(str(whole))
    whole.unlink()
    shards = [folder / f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    parts: list[dict[str, torch.Tensor]] = [{}, {}, {}]
    for index, (name, tensor) in enumerate(named.items()):
        parts[index % 3][name] = tensor
    for path, part in zip(shards, parts, strict=True):
        save_file(part, str(path), metadata={"format": "pt"})
    index = {n: shards[i].name for i, part in enumerate(parts) for n in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return shards


def test_shards_are_read_as_the_whole_file_is(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    config = read_config(folder)
    whole = disassemble(config, load_weights(config, folder, CPU, torch.float32))
    sharded(folder)
    again = disassemble(config, load_weights(config, folder, CPU, torch.float32))
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())


def test_the_index_says_which_files_belong_to_the_model(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    sharded(folder)
    (folder / "another.safetensors").write_bytes(b"not safetensors at all")
    load_weights(read_config(folder), folder, CPU, torch.float32)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    sharded(folder)[1].unlink()
    with pytest.raises(BadParameter, match=r"1 of 3 shards .*model-00002-of-00003"):
        load_weights(read_config(folder), folder, CPU, torch.float32)


def test_an_index_that_is_no_index_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(BadParameter, match=r"index\.json cannot be read"):
        load_weights(read_config(folder), folder, CPU, torch.float32)
