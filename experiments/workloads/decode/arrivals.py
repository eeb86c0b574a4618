"""The prompts whose time to first token is taken (torch-free).

They are the measured prompts cut to one length, so that no request brings new shapes, or, where
``ttft_tokens`` is more than ``prompt_tokens``, longer prompts in a cache of their own.

The longer ones are there because a short prefill of a small model is bound by the host that
launches it: at 0.6 B and 1,024 tokens the p95 of fresh processes on an H200's host differed by 28 %
(six pairs), which no number of pairs brings inside a guard of 3 %. The launches of a block take no
longer for 8,192 tokens, and the device then works longer than the host.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from experiments.values import Scalar
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.parameters import PROMPT_COUNT
from experiments.workloads.decode.prompts import prompt_set

Prompt = tuple[int, ...]

OWN_PROMPTS = 8
"""Longer prompts, taken in turn."""


def have_own_cache(parameters: Mapping[str, Scalar]) -> bool:
    """Whether the timed prompts are longer than those that are decoded."""
    return _number(parameters, "ttft_tokens") > _number(parameters, "prompt_tokens")


def arriving(
    parameters: Mapping[str, Scalar], config: ModelConfig, measured: Sequence[Prompt], seed: int
) -> tuple[Prompt, ...]:
    """The timed prompts; prompt ``i`` belongs to slot ``i``, or all to the one of their own.

    Raises:
        BadParameter: the text has too few tokens for prompts of that length.
    """
    length = _number(parameters, "ttft_tokens")
    if not have_own_cache(parameters):
        return tuple(prompt[:length] for prompt in measured)
    longer = prompt_set(str(parameters["model"]), config, length)
    drawn = random.Random(seed).sample(range(PROMPT_COUNT), OWN_PROMPTS)
    return tuple(longer.window(index, length) for index in drawn)


def in_rounds(
    parameters: Mapping[str, Scalar], prompts: Sequence[Prompt], rounds: int
) -> list[list[tuple[int, Prompt]]]:
    """The requests of each round, ``(slot, prompt)``: the prompts in turn."""
    own = have_own_cache(parameters)
    indices = (i % len(prompts) for i in range(_number(parameters, "ttft_repeats")))
    every = [(0 if own else index, prompts[index]) for index in indices]
    return [every[number::rounds] for number in range(rounds)]


def inputs(
    parameters: Mapping[str, Scalar], measured: Sequence[Prompt], prompts: Sequence[Prompt]
) -> tuple[Prompt, ...]:
    """All prompts of a sample, each once: what its inputs are named by."""
    return (*measured, *prompts) if have_own_cache(parameters) else tuple(measured)


def _number(parameters: Mapping[str, Scalar], name: str) -> int:
    return int(parameters[name] or 0)
