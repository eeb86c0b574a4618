"""A lever that fails on the second rank only, to see that it is named and the group is ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy

NAME = "failing_rank"
MESSAGE = "this rank fails on purpose"


@dataclass(frozen=True)
class FailingRank:
    """Every block of the second rank raises."""

    name: str = NAME
    summary: str = "fails on the second rank only"
    settings: Settings = field(default_factory=lambda: Settings((OFF, "on")))
    env: str = "LEVER_FAILING_RANK"
    touches: tuple[str, ...] = ("flow.block",)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("slat_flow", "ss_flow")
    at_import: bool = False

    def policy(self, facts: Facts) -> GatingPolicy:
        del facts
        return GatingPolicy(primaries=("train/tok_s",))

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        del facts, setting
        return ()

    def environment(self, setting: str) -> Mapping[str, str]:
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        del setting
        found = site.launch

        def launch(*arguments: Any) -> Any:
            if os.environ.get("RANK") == "1":
                raise RuntimeError(MESSAGE)
            return found(*arguments)

        site.launch = launch
        return found

    def disable(self, site: Site, undo: Any) -> None:
        site.launch = undo

    def witness(self, site: Site) -> Mapping[str, str]:
        del site
        return {}

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        del setting, device
        return ()


def plugin(folder: Path) -> Path:
    """Write the lever's file into a folder for ``LEVERGATE_LEVERS``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}.py"
    path.write_text(
        f'"""{MESSAGE.capitalize()}."""\n\n'
        "from benchmarks.failing_rank import FailingRank\n\nLEVER = FailingRank()\n"
    )
    return path
