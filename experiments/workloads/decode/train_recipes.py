"""What the training script can make: dimensions, schedule, and how its text is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from experiments.workloads.decode.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Recipe:
    """Dimensions and schedule; the last ``long_share`` of the steps sees long contexts.

    Attributes:
        config: the model's dimensions.
        steps: steps of the whole schedule; a time limit may end it sooner.
        batch_tokens: tokens of a step.
        short_tokens: context of the first steps.
        long_tokens: context of the last steps.
        long_share: share of the steps with long contexts.
        optimiser: ``muon`` gains most from each token, ``adamw`` from each second on a GPU.
        learning_rate: peak rate of ``adamw``; the rates of ``muon`` are its own.
        prompt_tokens: length of prompts for which the held-out text must be enough.
        held_out_characters: text that is kept from training; at most a tenth of the documents.
        tokenizer_characters: text from which the tokenizer is made.
        most_characters: text that is read at most.
    """

    config: ModelConfig
    steps: int
    batch_tokens: int
    short_tokens: int = 256
    long_tokens: int = 1024
    long_share: float = 0.25
    optimiser: Literal["muon", "adamw"] = "muon"
    learning_rate: float = 1e-3
    prompt_tokens: int = 1
    held_out_characters: int = 80_000
    tokenizer_characters: int = 50_000_000
    most_characters: int = 1_000_000_000


RECIPES = {
    "shipped": Recipe(
        ModelConfig("qwen3", 1024, 128, 512, 3, 16, 8, 16, max_positions=4096, eos_token_ids=(0,)),
        steps=1200,
        batch_tokens=2048,
        short_tokens=128,
        long_share=0.15,
    ),
    "100m": Recipe(
        ModelConfig(
            "qwen3", 16384, 768, 2048, 9, 16, 8, 128, max_positions=8192, eos_token_ids=(0,)
        ),
        steps=3000,
        batch_tokens=32768,
        short_tokens=1024,
        long_tokens=4096,
        long_share=0.2,
        optimiser="adamw",
        prompt_tokens=2048,
        held_out_characters=1_800_000,
        tokenizer_characters=20_000_000,
        most_characters=150_000_000,
    ),
}
"""``shipped`` trains in minutes on one core. ``100m`` has eight KV heads of 128 dimensions, as the
models of the family have, so that split rules and kernels meet the shapes they were made for."""
