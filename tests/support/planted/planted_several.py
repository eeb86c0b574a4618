"""A lever of several settings: 1..16 with the best at 4, and some with a fault each."""

from __future__ import annotations

import os
from typing import Any

from levers.base import Facts, Settings, Site
from tests.support.planted_lever import Launch, Planted, named


def best_at_four(setting: str, found: Launch) -> Launch:
    cost = 0.9 + 0.02 * abs(int(setting) - 4)
    return named(found, f"kernel={setting}", cost)


def wrong(found: Launch) -> Launch:
    def launch(x_NN: Any, y_NN: Any) -> Any:
        return found(x_NN, y_NN)[0] * 1.5, "kernel=wrong"

    launch.cost = 0.5  # type: ignore[attr-defined]
    return launch


def ending(x_NN: Any, y_NN: Any) -> Any:
    os._exit(7)


def raising(x_NN: Any, y_NN: Any) -> Any:
    raise RuntimeError("this setting cannot")


class Several(Planted):
    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        return ("this machine has none",) if setting == "absent" else ()

    def enable(self, site: Site, setting: str) -> object:
        found = site.launch
        others = {"wrong": wrong(found), "ends": ending, "raises": raising, "same": found}
        site.launch = others[setting] if setting in others else best_at_four(setting, found)
        return found


LEVER = Several(
    "planted_several",
    wrap=lambda launch: launch,
    settings=Settings(("off", "wrong", "ends", "raises", "same", "absent"), 1, 16),
)
