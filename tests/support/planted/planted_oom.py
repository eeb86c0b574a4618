"""A lever whose path wants more memory than any machine has."""

from __future__ import annotations

from typing import Any

from tests.support.planted_lever import Launch, Planted


def hungry(_: Launch) -> Launch:
    def launch(x_NN: Any, y_NN: Any) -> Any:
        import torch

        return torch.ones(1 << 46, dtype=torch.uint8), "kernel=hungry"

    return launch


LEVER = Planted("planted_oom", wrap=hungry)
