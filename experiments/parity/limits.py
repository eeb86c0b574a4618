"""How much the battery compares: prompts, repeats, reorderings, and at which concurrencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.values import Scalar

GPU_PROMPTS = 184
"""Greedy streams of a mode on a GPU, as many as the published token battery decodes."""

GPU_ALONE_TOKENS = 32
"""Tokens of a stream that is decoded alone on a GPU. An eager step waits for the host (17 ms for 28
blocks, measured): with 184 streams of 128 tokens, three times on each of three models, four levers
beside each other were not through on an H200 after 13 minutes. Longer answers are compared under
load.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the battery compares.

    Attributes:
        prompts: greedy streams per mode of the token check.
        alone_tokens: tokens of each stream that is decoded alone with a model that is named for
            them, where the lever acts under load, too; None for as many as there.
        repeats: whole processes per arm of the determinism check (K).
        reorderings: other orders of the reference's reductions in the loss check.
    """

    prompts: int = 16
    alone_tokens: int | None = None
    repeats: int = 2
    reorderings: int = 2

    @classmethod
    def usual(cls, device_type: str) -> Limits:
        """The real size on a GPU; on a CPU as many streams as a short run bears."""
        if device_type != "cuda":
            return cls()
        return cls(prompts=GPU_PROMPTS, alone_tokens=GPU_ALONE_TOKENS)


def concurrencies(parameters: Mapping[str, Scalar]) -> tuple[int, ...]:
    """The numbers of the parameter ``concurrency`` (``1,2,4,8``); none where there is no such."""
    text = str(parameters.get("concurrency", ""))
    return tuple(int(part) for part in text.split(",") if part.strip())
