"""What all commands share in printing: consoles, JSON, and a verdict."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.requests import Standing
    from experiments.run_record import RunRecord

JSON_SCHEMA_VERSION = 1
"""Version of every ``--json`` answer; raised when a field changes its meaning."""

PIPE_WIDTH = 100
"""Columns where the output is no terminal and nobody says how wide it is."""


def stdout() -> Console:
    """The console of results."""
    return _console(stderr=False)


def stderr() -> Console:
    """The console of progress and messages."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    class Piped(Console):
        """Where rich would end the process with 1, once the reader has gone."""

        def on_broken_pipe(self) -> None:
            if not self.stderr:
                raise BrokenPipeError
            # Nobody reads the progress any more; the measurement goes on.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    console = Piped(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def print_json(command: str, **fields: Any) -> None:
    """Print one JSON object that says which command and schema it is of."""
    answer = {"schema_version": JSON_SCHEMA_VERSION, "command": command, **_plain(fields)}
    sys.stdout.write(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """The value with non-finite numbers as text, since JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def run_fields(record: RunRecord, standing: Standing) -> Mapping[str, Any]:
    """A run as JSON: the verdict in words, what stands beside it, and the whole record."""
    import dataclasses

    from experiments.view.verdict import view

    shown = view(record, standing)
    decision = record.decision
    return {
        "run_id": record.run_id,
        "status": record.status,
        "outcome": decision.outcome.value if decision else None,
        "reason": decision.reason if decision else None,
        "headline": shown.headline,
        "text": shown.text,
        "cure": shown.cure,
        "marks": list(shown.marks),
        "facts": dict(shown.facts),
        "standing": dataclasses.asdict(standing),
        "record": record.model_dump(mode="json"),
    }


def print_run(record: RunRecord, standing: Standing, *, details: bool = False) -> None:
    """Print a run's verdict on the terminal."""
    from experiments.render_terminal import print_verdict
    from experiments.view.verdict import view

    print_verdict(stdout(), view(record, standing), details=details)
