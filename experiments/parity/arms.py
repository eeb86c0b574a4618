"""The levers of both arms of a check: the tested one by itself, or with a set beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from experiments.spec import LeverSetting


@dataclass(frozen=True, slots=True)
class Arms:
    """The levers of both arms, the tested one last; ``name`` says which comparison it is."""

    ref: tuple[LeverSetting, ...]
    cand: tuple[LeverSetting, ...]
    name: str = ""

    def of(self, arm: Literal["ref", "cand"]) -> tuple[LeverSetting, ...]:
        """The levers of one arm."""
        return self.ref if arm == "ref" else self.cand
