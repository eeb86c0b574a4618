"""What a driver knows of each of its steps, between its calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.h200_training_steps import Step
from experiments.files import write_atomically


@dataclass
class Journal:
    """What is known of each step, on disk after each change."""

    path: Path
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, state: Path) -> Journal:
        """The journal of a state folder."""
        path = state / "journal.json"
        return cls(path, json.loads(path.read_text()) if path.exists() else {})

    def of(self, step: Step) -> dict[str, Any]:
        """A step's entry; empty where it was never begun."""
        return self.found.get(step.name, {})

    def note(self, step: Step, **fields: Any) -> None:
        """Write fields of a step's entry."""
        self.found[step.name] = {**self.of(step), **fields}
        write_atomically(self.path, json.dumps(self.found, indent=1) + "\n")

    def forget(self, names: Sequence[str]) -> None:
        """Run steps again that are done."""
        for name in names:
            self.found.pop(name, None)

    def done(self, step: Step) -> bool:
        return self.of(step).get("state") == "done"
