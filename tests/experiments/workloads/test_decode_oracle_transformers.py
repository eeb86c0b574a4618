"""The oracle transformers on the shipped model and on random weights."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from experiments.oracle_facts import ORACLE_MODE_FACT
from experiments.tasks import Measurement
from experiments.values import TOKENS, Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode import config as decode_config
from experiments.workloads.decode import measuring, oracle_static, oracle_transformers
from experiments.workloads.decode.opening import open_implementation
from experiments.workloads.decode.oracle_model import (
    cache_keyword,
    open_model,
    transformers_module,
    weight_bytes,
)
from experiments.workloads.decode.oracle_static import StaticDecoder
from experiments.workloads.decode.oracle_transformers import TransformersOracle, open_transformers
from experiments.workloads.decode.weights import disassemble, random_weights
from experiments.workloads.decode.workload import DECODE
from levers.errors import BadParameter, LevergateError

CPU = DeviceFacts("cpu", "some CPU", 2**34)
SHORT = {
    "prompt_tokens": "96",
    "output_tokens": "24",
    "rounds": "2",
    "round_steps": "12",
    "ttft_repeats": "20",
    "concurrency": "1,3",
}


def parameters(**changes: str) -> Mapping[str, Scalar]:
    return DECODE.resolve({**SHORT, **changes}, CPU)


@pytest.fixture(scope="module")
def oracle() -> TransformersOracle:
    found = open_transformers(parameters(), "cpu", 1, "transformers")
    found.warm_up()
    return found


@pytest.fixture(scope="module")
def measured(oracle: TransformersOracle) -> Measurement:
    return oracle.measure()


def test_its_sample_has_the_axes_the_inputs_and_the_amount_of_work_of_the_arms(
    measured: Measurement,
) -> None:
    engine = open_implementation(parameters(), "cpu", 1, "engine")
    engine.warm_up()
    arm = engine.measure()
    assert measured.values.keys() == arm.values.keys()
    assert measured.inputs_digest == arm.inputs_digest
    assert measured.outputs_count == arm.outputs_count
    times = {n: len(v) for n, v in arm.raw.items() if not n.startswith(TOKENS)}
    assert {n: len(v) for n, v in measured.raw.items()} == times


def test_it_says_how_it_ran_and_that_is_how_its_users_run_it(measured: Measurement) -> None:
    assert measured.facts[ORACLE_MODE_FACT] == DECODE.oracle_mode(parameters(), "transformers")
    assert str(measured.facts["oracle_version"]).startswith("transformers ")
    assert measured.facts["oracle_attention"] == "sdpa"
    parts = ("weights", "prompts", "steps", "requests")
    assert {f"warm_{part}_s" for part in parts} <= measured.facts.keys()
    assert measured.facts["oracle_compiler"] == "not used"


def test_it_holds_the_weights_once(oracle: TransformersOracle, measured: Measurement) -> None:
    config = oracle._work.config
    assert config.tied_embeddings
    assert measured.facts["oracle_weight_bytes"] == 4 * config.parameters
    assert weight_bytes(oracle._model) == 4 * config.parameters


def test_its_greedy_streams_are_those_of_the_engine(oracle: TransformersOracle) -> None:
    arguments = {"want": "tokens", "prompts": 4}
    engine = open_implementation(parameters(), "cpu", 1, "engine")
    mine, theirs = engine.outputs(arguments), oracle.outputs(arguments)
    assert mine.streams == theirs.streams
    assert mine.inputs_digest == theirs.inputs_digest
    with pytest.raises(BadParameter, match="ask for tokens"):
        oracle.outputs({"want": "digests"})


def test_a_padded_batch_decodes_what_each_prompt_gives_alone(oracle: TransformersOracle) -> None:
    batch, prompts = oracle._batches[3], oracle._work.measured[:3]
    assert len({len(prompt) for prompt in prompts}) == 3
    batch.prefill(prompts)
    together = [batch.tokens_B1.flatten().tolist()]
    together += [batch.step().flatten().tolist() for _ in range(6)]
    batch.rewind()
    again = [batch.step().flatten().tolist() for _ in range(6)]
    assert together[1:] == again
    for slot, prompt in enumerate(prompts):
        oracle._alone.prefill([prompt])
        alone = [int(oracle._alone.tokens_B1)] + [int(oracle._alone.step()) for _ in range(6)]
        assert alone == [step[slot] for step in together]


def test_a_prefill_in_pieces_gives_the_same_streams(
    oracle: TransformersOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, prompts = oracle._batches[3], oracle._work.measured[:3]
    batch.prefill(prompts)
    whole = [batch.step().flatten().tolist() for _ in range(6)]
    monkeypatch.setattr(oracle_static, "PREFILL_TOKENS", 3 * 7)
    batch.prefill(prompts)
    assert [batch.step().flatten().tolist() for _ in range(6)] == whole


def test_the_first_token_of_a_prompt_is_that_of_the_engine(oracle: TransformersOracle) -> None:
    prompt = oracle._work.measured[0]
    oracle._alone.empty()
    first = oracle._alone.first_token(prompt)
    oracle._alone.prefill([prompt])
    assert first == int(oracle._alone.tokens_B1)


def test_a_compilation_in_the_timed_part_is_an_error(
    oracle: TransformersOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting:
        values = iter((3, 5))

        def count(self) -> int:
            return next(self.values)

    monkeypatch.setattr(oracle_transformers, "CompilationCounter", Counting)
    monkeypatch.setattr(measuring, "SETTLE", 0)
    with pytest.raises(LevergateError, match="compiled 2 times in its timed part"):
        oracle.measure()


def test_at_some_concurrencies_alone_it_reports_those() -> None:
    found = open_transformers(parameters(), "cpu", 1, "transformers:3")
    found.warm_up()
    sample = found.measure()
    assert "decode/tok_s/c1" not in sample.values
    assert sample.values["decode/tok_s/c3"] > 0
    assert "decode/itl_ms/p95" in sample.values
    assert sample.facts[ORACLE_MODE_FACT] == "eager-transformers"


def test_without_the_largest_concurrency_it_has_no_gaps_and_no_memory_to_compare() -> None:
    found = open_transformers(parameters(), "cpu", 1, "transformers:1")
    found.warm_up()
    axes = set(found.measure().values)
    assert axes == {"decode/tok_s/c1", "decode/ttft_ms/p50", "decode/ttft_ms/p95"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_weights_are_the_engines(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = dataclasses.replace(
        decode_config.NAMED["random-0.6b"],
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=16,
    )
    monkeypatch.setitem(decode_config.NAMED, "random-0.6b", tiny)
    cpu = torch.device("cpu")
    model = open_model("random-0.6b", tiny, 5, cpu, dtype)
    theirs: dict[str, Any] = dict(model.named_parameters())
    mine = disassemble(tiny, random_weights(tiny, 5, cpu, dtype))
    assert theirs.keys() == mine.keys()
    assert {tensor.dtype for tensor in theirs.values()} == {dtype}
    assert all(torch.equal(theirs[name], tensor) for name, tensor in mine.items())


def test_a_batch_takes_one_prompt_for_each_slot(oracle: TransformersOracle) -> None:
    with pytest.raises(ValueError, match="1 prompts for 3 slots"):
        oracle._batches[3].prefill([(1, 2)])
    fresh = StaticDecoder(oracle._model, 1, 8, oracle._model.forward)
    with pytest.raises(ValueError, match="nothing was prefilled"):
        fresh.rewind()


def test_without_transformers_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadParameter, match="pip install 'transformers"):
        transformers_module()


def test_a_version_without_a_cache_that_is_known_is_refused() -> None:
    class Model:
        def forward(self, input_ids: object) -> None:
            """Take no cache."""

    with pytest.raises(BadParameter, match=r"Model.forward takes no KV cache"):
        cache_keyword(Model())
