"""What the command line makes of the words of a benchmark's step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import cli
from experiments.commands import ab as ab_command
from experiments.commands import stack as stack_command


def asked(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The request of an ``ab`` or a ``stack``, which is not carried out."""
    heard: list[Any] = []

    def hear(request: Any, **_: Any) -> str:
        heard.append(request)
        return "inconclusive"

    monkeypatch.setattr(ab_command, "_run", hear)
    monkeypatch.setattr(stack_command, "_measure", lambda request, **_: heard.append(request) or 0)
    assert cli.main(list(words)) in (0, 3)
    return heard[0]
