from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.workloads.base import DeviceFacts
from experiments.workloads.catalog import get
from experiments.workloads.decode.config import NAMED, config_from
from experiments.workloads.decode.folder import SHIPPED_FOLDER, model_config
from experiments.workloads.decode.parameters import parsed_concurrency
from experiments.workloads.decode.prompts import PROMPT_COUNT, digest, prompt_set
from experiments.workloads.decode.workload import DECODE
from levers.errors import BadParameter, UnknownName

CPU = DeviceFacts("cpu", "some CPU", 2**34)
H200 = DeviceFacts("cuda:0", "NVIDIA H200", 141 * 10**9, sm_count=132)
PLAIN: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
STRETCHED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_the_catalog_has_the_workload() -> None:
    assert get("decode") is DECODE


def test_on_the_cpu_prompts_and_output_stay_inside_seven_blocks_of_128() -> None:
    found = DECODE.resolve({}, CPU)
    total = int(found["prompt_tokens"] or 0) + int(found["output_tokens"] or 0)
    assert int(found["prompt_tokens"] or 0) - 5 * 7 > 6 * 128
    assert total <= 7 * 128
    assert (found["sm_count"], found["kv_block"], found["threads"]) == (48, 128, 1)
    assert found["concurrency"] == "1,2,4,8"


def test_on_cuda_the_real_sms_the_kernel_and_the_graph_are_the_defaults() -> None:
    found = DECODE.resolve({"model": "random-0.6b"}, H200)
    assert (found["sm_count"], found["attn"], found["graph"]) == (132, "triton", "on")
    assert (found["concurrency"], found["kv_block"]) == ("1,2,4,8,16,32", 128)


def test_resolving_twice_gives_the_same() -> None:
    for device in (CPU, H200):
        once = DECODE.resolve({"concurrency": "2,1"}, device)
        assert DECODE.resolve({k: str(v) for k, v in once.items()}, device) == once


def test_the_shipped_model_is_a_small_qwen3_with_eight_kv_heads() -> None:
    config = model_config("shipped")
    assert (config.model_type, config.num_kv_heads, config.num_q_heads) == ("qwen3", 8, 16)
    assert sum(f.stat().st_size for f in SHIPPED_FOLDER.iterdir()) <= 4_000_000
    trained = json.loads((SHIPPED_FOLDER / "config.json").read_text())["training"]
    assert len(trained["text_sha256"]) == 64
    assert trained["median_top2_gap_nat"] > 0.5


def test_an_unknown_parameter_is_named_with_the_closest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'prompt_tokens'"):
        DECODE.resolve({"prompt_token": "8"}, CPU)


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ({"prompt_tokens": "many"}, "prompt_tokens = 'many'"),
        ({"output_tokens": "1"}, "2..16384"),
        ({"output_tokens": "8", "round_steps": "8"}, "at most 7"),
        ({"rounds": "1", "round_steps": "19"}, "too few for a p95"),
        ({"concurrency": "1,0"}, "concurrency"),
        ({"concurrency": "1,500"}, "at most 184"),
        ({"attn": "flash"}, "torch, triton"),
        ({"attn": "triton"}, "needs CUDA"),
        ({"graph": "on"}, "needs CUDA"),
        ({"page_size": "48"}, "power of two"),
        ({"prompt_tokens": "4096"}, "positions"),
        ({"ttft_tokens": "8192"}, "shorten prompt_tokens, output_tokens or ttft_tokens"),
        ({"page_size": "256"}, "divides kv_block 128"),
        ({"kv": "rowwise"}, "paged, contiguous"),
        ({"quality": "on", "model": "random-0.6b"}, "nothing was learnt"),
        ({"model": "random-7b"}, "random-0.6b"),
        ({"model": "/nowhere/at/all"}, "does not exist"),
    ],
)
def test_a_bad_parameter_is_refused_with_its_cure(requested: dict[str, str], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        DECODE.resolve(requested, CPU)


def test_the_kernel_takes_pieces_of_a_larger_page() -> None:
    model = {"model": "random-0.6b"}
    assert DECODE.resolve({**model, "page_size": "256"}, H200)["page_size"] == 256


def test_the_held_out_loss_is_an_axis_where_it_is_asked_for() -> None:
    off, on = (DECODE.resolve({"quality": text}, CPU) for text in ("off", "on"))
    axis, weights = [one for one in DECODE.axes(on) if one not in DECODE.axes(off)]
    assert (axis.name, axis.unit, axis.deterministic, axis.sign) == ("quality/nll", "nat", True, -1)
    assert (weights.name, weights.unit) == ("memory/weights_bytes", "bytes")
    assert (weights.deterministic, weights.sign) == (True, -1)


def test_the_stored_weights_are_an_axis_of_random_weights_too() -> None:
    names = [axis.name for axis in DECODE.axes(DECODE.resolve({"model": "random-0.6b"}, H200))]
    assert "memory/weights_bytes" in names
    assert "quality/nll" not in names


def test_a_graph_needs_an_attention_that_can_be_captured() -> None:
    with pytest.raises(BadParameter, match="cannot be captured"):
        DECODE.resolve({"attn": "torch"}, H200)
    assert DECODE.resolve({"attn": "torch", "graph": "off"}, H200)["attn"] == "torch"


def test_a_folder_with_pickled_weights_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BadParameter, match="pickle is never read"):
        DECODE.resolve({"model": str(tmp_path)}, CPU)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(BadParameter, match=r"lacks tokenizer\.json"):
        model_config(str(tmp_path))


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_folder_with_an_unreadable_configuration_is_refused(
    tmp_path: Path, text: str | None
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "tokenizer.json").write_text("{}")
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadParameter, match=r"config\.json"):
        model_config(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "qwen3 or llama"),
        ({"hidden_size": 0}, "positive integer"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "lacks or garbles"),
        ({"rope_scaling": {**STRETCHED, "high_freq_factor": 0.5}}, "low frequency factor below"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor = 0.25"),
        ({"head_dim": 3}, "not even"),
    ],
)
def test_a_feature_that_would_be_computed_wrongly_is_refused(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadParameter, match=words):
        config_from({**PLAIN, **change}, "config.json")


def test_the_rotary_base_is_read_in_both_spellings() -> None:
    old = config_from({**PLAIN, "rope_theta": 5e5}, "x")
    new = config_from(
        {**PLAIN, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "x"
    )
    assert old.rope_theta == new.rope_theta == 5e5


def test_the_named_sizes_have_the_parameters_of_their_names() -> None:
    assert NAMED["random-0.6b"].parameters == pytest.approx(0.596e9, rel=0.01)
    assert NAMED["random-4b"].parameters == pytest.approx(4.02e9, rel=0.01)


def test_every_throughput_has_the_oracle_as_its_target() -> None:
    found = DECODE.resolve({"concurrency": "1,4"}, CPU)
    assert [t.axis for t in DECODE.targets(found, "sdpa")] == [
        "decode/tok_s/c1",
        "decode/tok_s/c4",
    ]
    assert DECODE.targets(found, None) == ()
    assert {axis.name for axis in DECODE.axes(found)} >= {
        "decode/tok_s/c4",
        "decode/ttft_ms/p95",
        "decode/itl_ms/p50",
        "memory/peak_bytes",
    }


def test_the_oracle_is_captured_where_the_engine_is() -> None:
    assert DECODE.oracle_mode(DECODE.resolve({}, CPU), "sdpa") == "eager-sdpa"
    assert DECODE.oracle_mode(DECODE.resolve({}, H200), "sdpa") == "captured-sdpa"


def test_a_step_cannot_be_faster_than_its_bytes() -> None:
    found = DECODE.resolve({"model": "random-0.6b"}, H200)
    bounds = DECODE.impossible(found, H200)
    cached = 1.42e9 - 1.19e9
    least = 1.19e9 * 4.25 / 16 + cached
    assert bounds["decode/tok_s/c1"] == pytest.approx(4.8e12 / least, rel=0.02)
    assert DECODE.impossible(DECODE.resolve({}, H200), H200) == {}
    assert DECODE.impossible(DECODE.resolve({}, CPU), CPU) == {}


def test_needs_grow_with_the_model() -> None:
    small = DECODE.needs(DECODE.resolve({}, H200), H200)
    large = DECODE.needs(DECODE.resolve({"model": "random-4b"}, H200), H200)
    assert large.device_memory_bytes > small.device_memory_bytes > 2**29
    assert DECODE.needs(DECODE.resolve({}, CPU), CPU).device_memory_bytes == 0


def test_the_time_of_a_sample_follows_model_and_mode_so_that_no_budget_is_refused_in_vain() -> None:
    def seconds(**asked: str) -> float:
        return DECODE.needs(DECODE.resolve(asked, H200), H200).seconds_per_sample

    captured, eager = seconds(model="random-0.6b"), seconds(model="random-0.6b", graph="off")
    assert 5 < captured < 10  # measured: about 6
    assert captured < eager < 25
    assert captured < seconds(model="random-4b") < 25
    assert seconds(model="shipped", concurrency="1") < 6
    assert DECODE.needs(DECODE.resolve({}, CPU), CPU).seconds_per_sample == 3.0
    assert DECODE.needs(DECODE.resolve({}, H200), H200).time_limit_s == 600


def test_the_concurrencies_are_sorted_and_single() -> None:
    assert parsed_concurrency("8,1,1,4") == (1, 4, 8)


def test_there_are_184_different_fixed_prompts() -> None:
    prompts = prompt_set("shipped", model_config("shipped"), 832).fixed(PROMPT_COUNT)
    assert len({digest([p]) for p in prompts}) == PROMPT_COUNT == 184
    assert max(len(p) for p in prompts) == 832
    assert len({len(p) for p in prompts}) == 8


def test_measured_prompts_are_drawn_by_seed_and_ragged() -> None:
    prompts = prompt_set("shipped", model_config("shipped"), 832)
    assert prompts.measured(8, 1) == prompts.measured(8, 1) != prompts.measured(8, 2)
    assert [len(p) for p in prompts.measured(8, 1)] == [832 - 5 * i for i in range(8)]


def test_stretches_of_the_text_do_not_overlap() -> None:
    prompts = prompt_set("shipped", model_config("shipped"), 832)
    (whole,) = prompts.apart(1, 500)
    assert sum(prompts.apart(5, 100), ()) == whole
    assert len(prompts.apart(10**6, 832)) > 10


def test_a_folder_brings_its_own_prompts(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).symlink_to(SHIPPED_FOLDER / name)
    config = model_config(str(tmp_path))
    shipped = prompt_set("shipped", config, 100).window(0, 100)
    assert prompt_set(str(tmp_path), config, 100).window(0, 100) == shipped
    (tmp_path / "prompts.txt").write_text("And it came to pass in those days. " * 60)
    assert prompt_set(str(tmp_path), config, 100).window(0, 100) != shipped


def test_prompts_longer_than_the_text_are_refused() -> None:
    with pytest.raises(BadParameter, match="too few for 184 prompts"):
        prompt_set("shipped", model_config("shipped"), 10**6)


def test_random_weights_get_random_prompts_of_any_length() -> None:
    config = NAMED["random-0.6b"]
    prompt = prompt_set("random-0.6b", config, 4096).window(183, 4096)
    assert len(prompt) == 4096
    assert max(prompt) < config.vocab_size


def test_the_description_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from experiments.workloads.base import DeviceFacts\n"
        "from experiments.workloads.decode.workload import DECODE\n"
        "DECODE.resolve({}, DeviceFacts('cpu', 'some CPU', 2**34))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
