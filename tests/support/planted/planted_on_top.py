"""A lever that takes 10 % off whatever launch it finds, and may share its site."""

from __future__ import annotations

from typing import Any

from tests.support.planted_lever import Launch, Planted


def on_top(found: Launch) -> Launch:
    def launch(x_NN: Any, y_NN: Any) -> Any:
        product, plan = found(x_NN, y_NN)
        return product, f"{plan} on-top"

    launch.cost = 0.9 * float(getattr(found, "cost", 1.0))  # type: ignore[attr-defined]
    return launch


LEVER = Planted("planted_on_top", wrap=on_top, composes_with=("planted_fast",))
