"""Fixed prompts: overlapping windows of the held-out text that ships with the model."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence

from tokenizers import Tokenizer

from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.folder import PROMPTS_FILE, is_random, model_folder
from experiments.workloads.decode.parameters import PROMPT_COUNT
from levers.errors import BadParameter

RAGGED_STEP = 5
"""Each measured prompt is this many tokens shorter than the one before."""
SHARES = (1.0, 0.3, 0.55, 0.8, 0.2, 0.65, 0.45, 0.9)
"""Lengths of the parity prompts, as shares of ``prompt_tokens``, in turn."""


class PromptSet:
    """Windows of one long token sequence; window ``i`` begins at ``i * stride``."""

    def __init__(self, ids: Sequence[int], longest: int) -> None:
        self._ids, self._longest = ids, longest
        self._stride = (len(ids) - longest) // PROMPT_COUNT
        if self._stride < 1:
            raise BadParameter(
                f"the prompt text has {len(ids)} tokens: "
                f"too few for {PROMPT_COUNT} prompts of {longest}",
                cure=f"ask for prompt_tokens of at most {max(1, len(ids) - PROMPT_COUNT)}",
            )

    def window(self, index: int, length: int) -> tuple[int, ...]:
        """Prompt ``index`` (from 0, below :data:`PROMPT_COUNT`) cut to ``length`` tokens."""
        if not 0 <= index < PROMPT_COUNT or not 1 <= length <= self._longest:
            raise BadParameter(
                f"no prompt {index} of {length} tokens", cure=f"there are {PROMPT_COUNT} prompts"
            )
        start = index * self._stride
        return tuple(self._ids[start : start + length])

    def measured(self, count: int, seed: int) -> tuple[tuple[int, ...], ...]:
        """``count`` prompts drawn by seed, the first longest and the others a little shorter."""
        drawn = random.Random(seed).sample(range(PROMPT_COUNT), count)
        lengths = (max(1, self._longest - RAGGED_STEP * i) for i in range(count))
        return tuple(self.window(i, n) for i, n in zip(drawn, lengths, strict=True))

    def apart(self, count: int, length: int) -> tuple[tuple[int, ...], ...]:
        """At most ``count`` stretches of ``length`` tokens that do not overlap, from the first."""
        starts = range(0, len(self._ids) - length + 1, length)
        return tuple(tuple(self._ids[start : start + length]) for start in starts[:count])

    def fixed(self, count: int) -> tuple[tuple[int, ...], ...]:
        """The first ``count`` prompts of the parity pass, of different lengths."""
        lengths = (max(1, int(self._longest * SHARES[i % len(SHARES)])) for i in range(count))
        return tuple(self.window(i, n) for i, n in enumerate(lengths))


def prompt_set(model: str, config: ModelConfig, longest: int) -> PromptSet:
    """The prompts of a model: held-out text in its own tokens, or drawn ids for random weights.

    A folder may bring its own held-out text as ``prompts.txt``; otherwise it is the shipped one.
    """
    if is_random(model):
        draw = random.Random(0)
        return PromptSet(
            [draw.randrange(config.vocab_size) for _ in range(longest + 8 * PROMPT_COUNT)], longest
        )
    folder = model_folder(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    own = folder / PROMPTS_FILE.name
    text = (own if own.is_file() else PROMPTS_FILE).read_text(encoding="utf-8")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    beyond = [i for i in ids if i >= config.vocab_size]
    if beyond:
        raise BadParameter(
            f"model {model}: the tokenizer gives token {beyond[0]}, "
            f"the model has {config.vocab_size}",
            cure="tokenizer.json belongs to another model",
        )
    return PromptSet(ids, longest)


def digest(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 (16 hex digits) of the prompts' token ids."""
    return hashlib.sha256(json.dumps([list(p) for p in prompts]).encode()).hexdigest()[:16]
