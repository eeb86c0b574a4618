"""A lever whose result is wrong, and whose figures are not finite on request."""

from __future__ import annotations

from typing import Any

from tests.support.planted_lever import Launch, Planted


def wrong(launch: Launch) -> Launch:
    def other(x_NN: Any, y_NN: Any) -> Any:
        return launch(x_NN, y_NN)[0] * 1.5, "kernel=wrong"

    other.cost = 0.5  # type: ignore[attr-defined]
    return other


LEVER = Planted("planted_wrong", wrap=wrong)
