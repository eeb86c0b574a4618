"""The prompts whose first token is timed: of one length, or longer than those that are decoded."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.metrics import percentile
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode import arrivals
from experiments.workloads.decode.folder import model_config
from experiments.workloads.decode.opening import open_implementation
from experiments.workloads.decode.prompts import prompt_set
from experiments.workloads.decode.session import DecodeSession
from experiments.workloads.decode.workload import DECODE

CPU = DeviceFacts("cpu", "some CPU", 2**34)
H200 = DeviceFacts("cuda:0", "NVIDIA H200", 150_754_820_096, 132, (9, 0))
LONGER = {
    "prompt_tokens": "96",
    "output_tokens": "24",
    "rounds": "2",
    "round_steps": "12",
    "ttft_repeats": "20",
    "ttft_tokens": "160",
    "concurrency": "1,3",
}


def parameters(**changes: str) -> Mapping[str, Scalar]:
    return DECODE.resolve({**LONGER, **changes}, CPU)


def test_the_default_on_cuda_has_one_length_that_every_measured_prompt_has() -> None:
    found = DECODE.resolve({"model": "random-0.6b"}, H200)
    config = model_config("random-0.6b")
    prompts = prompt_set("random-0.6b", config, int(found["prompt_tokens"] or 0))
    measured = prompts.measured(32, 1)
    timed = arrivals.arriving(found, config, measured, 1)
    assert {len(prompt) for prompt in timed} == {found["ttft_tokens"]} == {1792}
    assert not arrivals.have_own_cache(found)
    rounds = arrivals.in_rounds(found, timed, 2)
    assert sum(map(len, rounds)) == found["ttft_repeats"]
    assert [slot for slot, _ in rounds[0]][:3] == [0, 2, 4]


def test_longer_prompts_are_drawn_by_seed_and_arrive_at_one_slot() -> None:
    config, found = model_config("shipped"), parameters()
    one, same, other = (arrivals.arriving(found, config, ((1,),), seed) for seed in (1, 1, 2))
    assert one == same != other
    assert {len(prompt) for prompt in one} == {160}
    assert {slot for share in arrivals.in_rounds(found, one, 2) for slot, _ in share} == {0}
    assert arrivals.inputs(found, ((1,),), one) == ((1,), *one)


@pytest.mark.parametrize("implementation", ["engine", "oracle:sdpa", "oracle:transformers"])
def test_a_longer_prompt_is_timed_and_what_is_decoded_stays_the_same(implementation: str) -> None:
    longer = open_implementation(parameters(), "cpu", 1, implementation)
    longer.warm_up()
    sample = longer.measure()
    assert len(sample.raw["ttft_ms"]) == 20
    assert len(sample.raw["gaps_ms/c3"]) == 24
    plain = open_implementation(parameters(ttft_tokens="64"), "cpu", 1, "engine")
    plain.warm_up()
    assert plain.measure().inputs_digest != sample.inputs_digest


def test_the_caches_of_the_decoded_prompts_are_not_touched_by_longer_ones() -> None:
    def tokens(timed: str) -> list[int]:
        found = open_implementation(parameters(ttft_tokens=timed), "cpu", 1, "engine")
        assert isinstance(found, DecodeSession)
        found.warm_up()
        found.measure()
        return [int(token) for token in found._engine.tokens_B]

    assert tokens("160") == tokens("96")


def test_a_sample_says_what_its_warm_up_took() -> None:
    found = open_implementation(parameters(), "cpu", 1, "engine")
    found.warm_up()
    facts = found.measure().facts
    parts = {"warm_weights_s", "warm_prompts_s", "warm_steps_s", "warm_requests_s"}
    assert parts <= facts.keys()
    assert all(float(facts[name] or 0) >= 0 for name in parts)


def test_memory_is_planned_for_the_longer_prompt() -> None:
    plain = DECODE.resolve({"model": "random-0.6b"}, H200)
    longer = DECODE.resolve({"model": "random-0.6b", "ttft_tokens": "8192"}, H200)
    more = [DECODE.needs(one, H200).device_memory_bytes for one in (longer, plain)]
    assert more[0] - more[1] == 8192 * model_config("random-0.6b").kv_bytes_per_token


# --- what the defaults on CUDA rest on -----------------------------------------------------------

BUNDLE = Path(__file__).resolve().parents[3] / "docs/results/h200/fa2_nsplits_cap-decode-0.6b.json"


def noise(value: Callable[[Mapping[str, Any]], float]) -> float:
    """Percent: the deviation of the log ratio between the two processes of six pairs."""
    samples = json.loads(BUNDLE.read_text())["record"]["samples"]
    of = {(one["arm"], one["pair"]): math.log(value(one)) for one in samples}
    return 100 * statistics.stdev(of["cand", pair] - of["ref", pair] for pair in range(6))


@pytest.mark.parametrize("steps", [8, 16, 32, 64])
@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32])
def test_the_noise_between_processes_does_not_fall_with_the_steps_that_are_counted(
    count: int, steps: int
) -> None:
    assert 0.45 < noise(lambda one: sum(one["raw"][f"gaps_ms/c{count}"][:steps])) < 0.95


def test_a_short_prefill_scatters_with_its_host_and_no_guard_can_be_proven_on_it() -> None:
    assert noise(lambda one: one["values"]["decode/ttft_ms/p95"]) > 25
    assert noise(lambda one: percentile(one["raw"]["gaps_ms/c32"][:32], 95)) < 1.0
