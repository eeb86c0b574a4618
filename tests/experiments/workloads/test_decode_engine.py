"""The engine: paged steps, continuous batching and greedy rules, against whole sequences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from experiments.workloads.decode.attention import SdpaAttention, SplitAttention, StepAttention
from experiments.workloads.decode.caches import ContiguousCache, PagedCache
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.engine import DecodeEngine
from experiments.workloads.decode.generation import (
    greedy_streams,
    logit_gaps,
    step_digests,
)
from experiments.workloads.decode.names import SPLIT_RULE, SPLIT_RULE_CONTIGUOUS, WEIGHTS
from experiments.workloads.decode.sites import DecodeSites
from experiments.workloads.decode.sources import RandomSource
from experiments.workloads.decode.weights import LazyDecoder
from levers.errors import BadParameter
from levers.kernels.split_heuristic import DecodeShape

CPU = torch.device("cpu")
CONFIG = ModelConfig("qwen3", 61, 16, 24, 2, 4, 2, 8, eos_token_ids=(3,))
CAPACITY, SLOTS = 64, 3
PROMPTS = [[5, 9, 2, 40], [7] * 20, [11, 12, 13, 14, 15, 16, 17], [1], [30, 31] * 9]


def sharp(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Random weights whose attention is not the mean of everything."""
    return tensor.mul_(20.0) if name in ("qkv", "o") else tensor


def engine(kind: str = "paged", rule: Callable[[DecodeShape], int] | None = None) -> DecodeEngine:
    sites = DecodeSites()
    sites.by_name[WEIGHTS].launch = sharp
    if rule is not None:
        sites.by_name[SPLIT_RULE].launch = rule
        sites.by_name[SPLIT_RULE_CONTIGUOUS].launch = rule
    source = RandomSource(CONFIG, 4, CPU, torch.float32)
    decoder = LazyDecoder(CONFIG, source, sites, CPU, torch.float32)
    attention: StepAttention
    rows = ContiguousCache(CONFIG, SLOTS, CAPACITY, CPU, torch.float32)
    if kind == "sdpa":
        attention = SdpaAttention(CONFIG, rows)
    elif kind == "contiguous":
        attention = SplitAttention(CONFIG, rows, sites, 16, CAPACITY, 48)
    else:
        pages = PagedCache(CONFIG, SLOTS, CAPACITY, 16, CPU, torch.float32)
        for slot in range(SLOTS):
            pages.admit(slot)
        attention = SplitAttention(CONFIG, pages, sites, 16, CAPACITY, 48)
    return DecodeEngine(decoder, attention, SLOTS, CAPACITY)


def streams(found: DecodeEngine, count: int, tokens: int = 12) -> list[tuple[int, ...]]:
    found.plan(count)
    done = greedy_streams(found, lambda: found.step(count), PROMPTS, count, tokens)
    assert [stream.prompt for stream in done] == list(range(len(PROMPTS)))
    return [stream.tokens for stream in done]


def greedy_by_prefill(found: DecodeEngine, prompt: list[int], tokens: int) -> tuple[int, ...]:
    sequence = list(prompt)
    answer: list[int] = []
    while len(answer) < tokens and 3 not in answer:
        answer.append(int(found.prefill_logits(0, sequence).argmax()))
        sequence.append(answer[-1])
    return tuple(answer)


@pytest.mark.parametrize("kind", ["paged", "contiguous", "sdpa"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_decoding_step_by_step_equals_the_whole_sequence_at_once(kind: str, count: int) -> None:
    found = engine(kind)
    expected = [greedy_by_prefill(engine(), prompt, 12) for prompt in PROMPTS]
    assert streams(found, count) == expected


def test_a_stream_stops_at_the_stop_token_or_at_its_length() -> None:
    found = engine()
    found.plan(1)
    for stream in greedy_streams(found, lambda: found.step(1), PROMPTS, 1, 6):
        if stream.finish == "stop":
            assert stream.tokens[-1] == 3
            assert 3 not in stream.tokens[:-1]
        else:
            assert len(stream.tokens) == 6
            assert 3 not in stream.tokens


def test_the_lowest_token_wins_a_tie() -> None:
    found = engine()
    head_VC = found.weights.head_VC
    assert isinstance(head_VC, torch.Tensor)
    head_VC.zero_()
    assert set(streams(found, 2, tokens=3)) == {(0, 0, 0)}


@pytest.mark.parametrize(
    ("kind", "name"), [("paged", SPLIT_RULE), ("contiguous", SPLIT_RULE_CONTIGUOUS)]
)
def test_the_split_rule_is_asked_with_the_capacity_and_its_answer_is_launched(
    kind: str, name: str
) -> None:
    asked: list[DecodeShape] = []

    def rule(shape: DecodeShape) -> int:
        asked.append(shape)
        return 3

    found = engine(kind, rule)
    site = found.sites.by_name[name]
    found.plan(2)
    found.prefill(0, PROMPTS[0])
    found.prefill(1, PROMPTS[1])
    found.sites.watch = "decode/tok_s/c2"
    found.step(2)
    assert asked == [DecodeShape(2, 2, CAPACITY, 16, 48, query_heads=4)]
    assert site.observations == {"decode/tok_s/c2": {"num_splits=3": CONFIG.num_layers}}
    other = {SPLIT_RULE, SPLIT_RULE_CONTIGUOUS} - {name}
    assert found.sites.by_name[other.pop()].observations == {}


def test_a_reused_slot_gets_other_pages_and_no_page_twice() -> None:
    cache = engine().attention.cache
    assert isinstance(cache, PagedCache)
    before = cache.table_BM[1].tolist()
    cache.admit(1)
    held = cache.table_BM.flatten().tolist()
    assert sorted(held) == list(range(SLOTS * cache.pages_per_slot))
    assert len(before) == cache.pages_per_slot


@pytest.mark.parametrize("count", [1, 2])
def test_the_gap_of_the_references_own_choice_is_zero_and_of_another_is_positive(
    count: int,
) -> None:
    found = engine()
    tokens = greedy_by_prefill(engine(), PROMPTS[1], 5)
    other = (tokens[3] + 1) % CONFIG.vocab_size
    prefixes = [
        (1, tokens[:3], tokens[3]),
        (0, (), 8),
        (1, tokens[:3], other),
        (1, tokens[:1], tokens[1]),
    ]
    found.plan(count)
    own, first, wrong, early = logit_gaps(found, found.eager(count), PROMPTS, prefixes, count)
    assert own == early == 0.0
    assert wrong > 0.0
    scores = engine().prefill_logits(0, PROMPTS[0])
    assert first == pytest.approx(float(scores.max() - scores[8]), rel=1e-4, abs=1e-5)


def test_a_prefix_longer_than_the_cache_is_refused() -> None:
    with pytest.raises(BadParameter, match="exceeds the cache"):
        logit_gaps(engine(), list, PROMPTS, [(0, [1] * CAPACITY, 2)], 1)


def test_digests_name_each_step_and_see_a_non_finite_value() -> None:
    found = engine()
    found.plan(2)
    digests, bad = step_digests(found, lambda: found.step(2), PROMPTS[:2], 3, "logits/c2")
    assert list(digests) == [f"logits/c2/step{i}" for i in range(3)]
    assert set(bad.values()) == {0}
    again, _ = step_digests(found, lambda: found.step(2), PROMPTS[:2], 3, "logits/c2")
    assert again == digests
    found.weights.final_norm_C.fill_(float("nan"))
    _, bad = step_digests(found, lambda: found.step(2), PROMPTS[:2], 1, "logits/c2")
    assert bad == {"logits/c2/step0": 2 * CONFIG.vocab_size}


@pytest.mark.parametrize("kind", ["paged", "contiguous"])
def test_a_token_stored_by_someone_else_is_attended_to_like_one_of_its_own(kind: str) -> None:
    found, other = engine(kind), engine(kind)
    q_BHD, k_BKD, v_BKD = (torch.randn(2, heads, 8) for heads in (4, 2, 2))
    for one in (found, other):
        one.plan(2)
        one.prefill(0, PROMPTS[0])
        one.prefill(1, PROMPTS[1])
        one.attention.begin(torch.arange(2), one.positions_B[:2])
    expected = found.attention(1, q_BHD, k_BKD, v_BKD).clone()
    attention = other.attention
    assert isinstance(attention, SplitAttention)
    k_RD, v_RD, rows = attention.places(1)
    k_RD[rows], v_RD[rows] = k_BKD.flatten(0, 1), v_BKD.flatten(0, 1)
    assert torch.equal(attention.attend_stored(1, q_BHD), expected)
