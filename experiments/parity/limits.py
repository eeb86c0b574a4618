"""How much the battery compares: prompts, repeats, reorderings, and at which concurrencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.values import Scalar

GPU_PROMPTS = 184
"""Greedy streams of a mode on a GPU, as many as the published token battery decodes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the battery compares.

    Attributes:
        prompts: greedy streams per mode of the token check.
        repeats: whole processes per arm of the determinism check (K).
        reorderings: other orders of the reference's reductions in the loss check.
    """

    prompts: int = 16
    repeats: int = 2
    reorderings: int = 2

    @classmethod
    def usual(cls, device_type: str) -> Limits:
        """The real size on a GPU; on a CPU as many streams as a short run bears."""
        return cls(prompts=GPU_PROMPTS) if device_type == "cuda" else cls()


def concurrencies(parameters: Mapping[str, Scalar]) -> tuple[int, ...]:
    """The numbers of the parameter ``concurrency`` (``1,2,4,8``); none where there is no such."""
    text = str(parameters.get("concurrency", ""))
    return tuple(int(part) for part in text.split(",") if part.strip())
