"""Greedy streams under continuous batching, teacher forcing, and digests of the logits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from experiments.tasks import Stream
from experiments.workloads.decode.engine import DecodeEngine
from experiments.workloads.decode.names import rate_axis as rate_axis
from levers.errors import BadParameter

Step = Callable[[], Tensor]
Prompt = Sequence[int]


@dataclass(slots=True)
class _Slot:
    """One slot of the batch: the prompt that it works on, and its tokens so far."""

    prompt: int
    tokens: list[int]
    finish: Literal["stop", "length"] | None = None


def greedy_streams(
    engine: DecodeEngine,
    step: Step,
    prompts: Sequence[Prompt],
    count: int,
    max_tokens: int,
) -> tuple[Stream, ...]:
    """Decode all prompts with ``count`` slots; a slot that ends takes the next prompt at once.

    A stream ends at a stop token of the model (kept as its last token) or at ``max_tokens``.
    A slot with nothing left to do repeats its last position and its tokens are dropped.
    """
    waiting = list(enumerate(prompts))
    slots: list[_Slot | None] = [None] * count
    done: list[Stream] = []
    while True:
        for index in range(count):
            slots[index] = _refill(engine, slots[index], index, waiting, done, max_tokens)
        busy = torch.tensor([slot is not None for slot in slots], dtype=torch.int64)
        if not busy.any():
            break
        engine.active_B[:count] = busy.to(engine.active_B.device)
        for slot, token in zip(slots, step().tolist(), strict=True):
            if slot is not None:
                _take(engine, slot, int(token), max_tokens)
    engine.active_B.fill_(1)
    return tuple(sorted(done, key=lambda stream: stream.prompt))


def _refill(
    engine: DecodeEngine,
    slot: _Slot | None,
    index: int,
    waiting: list[tuple[int, Prompt]],
    done: list[Stream],
    max_tokens: int,
) -> _Slot | None:
    """Hand in a finished stream and prefill the next prompts until one is not finished at once."""
    while slot is None or slot.finish is not None:
        if slot is not None and slot.finish is not None:
            done.append(Stream(prompt=slot.prompt, tokens=tuple(slot.tokens), finish=slot.finish))
        if not waiting:
            return None
        number, prompt = waiting.pop(0)
        engine.attention.cache.admit(index)
        slot = _Slot(number, [])
        _take(engine, slot, engine.prefill(index, prompt), max_tokens)
    return slot


def _take(engine: DecodeEngine, slot: _Slot, token: int, max_tokens: int) -> None:
    slot.tokens.append(token)
    if token in engine.config.eos_token_ids:
        slot.finish = "stop"
    elif len(slot.tokens) >= max_tokens:
        slot.finish = "length"


def logit_gaps(
    engine: DecodeEngine,
    step: Step,
    prompts: Sequence[Prompt],
    prefixes: Sequence[tuple[int, Sequence[int], int]],
    count: int,
) -> tuple[float, ...]:
    """Teacher-force each prefix and return best logit minus the candidate token's logit, in nat.

    Each prefix is ``(prompt index, output tokens so far, candidate token)``. The prefix is decoded
    step by step as it was when it came about, and not prefilled; ``count`` of them at a time, by a
    ``step`` of so many slots, so that it is also the kernels of that batch that are asked.
    """
    gaps = [0.0] * len(prefixes)
    by_length = sorted(range(len(prefixes)), key=lambda index: len(prefixes[index][1]))
    for first in range(0, len(prefixes), count):
        chosen = by_length[first : first + count]
        found = _gaps_together(engine, step, prompts, [prefixes[one] for one in chosen], count)
        for index, gap in zip(chosen, found, strict=True):
            gaps[index] = gap
    return tuple(gaps)


def _gaps_together(
    engine: DecodeEngine,
    step: Step,
    prompts: Sequence[Prompt],
    prefixes: Sequence[tuple[int, Sequence[int], int]],
    count: int,
) -> list[float]:
    """The gaps of no more prefixes than slots; a slot that is through repeats its last token."""
    gaps = []
    for slot, (prompt, tokens, candidate) in enumerate(prefixes):
        if len(prompts[prompt]) + len(tokens) > engine.capacity_tokens:
            raise BadParameter(
                f"prefix of {len(tokens)} tokens exceeds the cache", cure="shorten the prefix"
            )
        engine.attention.cache.admit(slot)
        gaps.append(_gap(engine.prefill_logits(slot, prompts[prompt]), candidate))
    idle = [0] * (count - len(prefixes))
    for offset in range(max((len(tokens) for _, tokens, _ in prefixes), default=0)):
        at = [max(0, min(offset, len(tokens) - 1)) for _, tokens, _ in prefixes]
        forced = [
            tokens[one] if tokens else 0 for one, (_, tokens, _) in zip(at, prefixes, strict=True)
        ]
        places = [
            len(prompts[prompt]) + one for one, (prompt, _, _) in zip(at, prefixes, strict=True)
        ]
        engine.tokens_B[:count] = torch.tensor([*forced, *idle])
        engine.positions_B[:count] = torch.tensor([*places, *idle])
        step()
        for slot, (_, tokens, candidate) in enumerate(prefixes):
            if len(tokens) == offset + 1:
                gaps[slot] = _gap(engine.logits_BV[slot], candidate)
    return gaps


def _gap(logits_V: Tensor, candidate: int) -> float:
    scores = logits_V.float()
    return float(scores.max() - scores[candidate])


def step_digests(
    engine: DecodeEngine, step: Step, prompts: Sequence[Prompt], steps: int, name: str
) -> tuple[dict[str, str], dict[str, int]]:
    """Decode ``steps`` tokens of all prompts at once; SHA-256 of the logits of each step.

    Returns:
        Digests and counts of non-finite values, by ``name/step<i>``.
    """
    count = len(prompts)
    for index, prompt in enumerate(prompts):
        engine.attention.cache.admit(index)
        engine.prefill(index, prompt)
    digests, nonfinite = {}, {}
    for index in range(steps):
        step()
        logits_BV = engine.logits_BV[:count].float().cpu()
        key = f"{name}/step{index}"
        digests[key] = hashlib.sha256(logits_BV.numpy().tobytes()).hexdigest()
        nonfinite[key] = int((~torch.isfinite(logits_BV)).sum())
    return digests, nonfinite
