"""The base of the planted levers: each file in ``planted/`` makes one with a fault of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from levers.base import Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, ParityClass

Launch = Callable[..., Any]


@dataclass(frozen=True)
class Planted:
    """A lever on the stub's one site; ``wrap`` makes the candidate's launch from what was found."""

    name: str
    wrap: Callable[[Launch], Launch]
    at_enable: Callable[[], None] = lambda: None
    variables: Mapping[str, str] = field(default_factory=dict)
    at_import: bool = False
    summary: str = "a planted lever"
    settings: Settings = field(default_factory=lambda: Settings(("off", "on")))
    touches: tuple[str, ...] = ("stub.product",)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("stub",)

    @property
    def env(self) -> str:
        return f"LEVER_{self.name.upper()}"

    def policy(self, facts: Facts) -> GatingPolicy:
        return GatingPolicy(primaries=("stub/items_s",), claims=ParityClass.LOSSLESS)

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        return ()

    def environment(self, setting: str) -> Mapping[str, str]:
        return self.variables

    def enable(self, site: Site, setting: str) -> object:
        found = site.launch
        self.at_enable()
        site.launch = self.wrap(found)
        return found

    def disable(self, site: Site, undo: object) -> None:
        site.launch = undo  # type: ignore[assignment]

    def witness(self, site: Site) -> Mapping[str, str]:
        return {
            axis: " ".join(f"{plan} x {count}" for plan, count in sorted(plans.items()))
            for axis, plans in site.observations.items()
        }

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        return ()


def named(launch: Launch, plan: str, cost: float = 1.0) -> Launch:
    """The same work under another plan, at another cost on the virtual clock."""

    def other(x_NN: Any, y_NN: Any) -> Any:
        return launch(x_NN, y_NN)[0], plan

    other.cost = cost  # type: ignore[attr-defined]
    return other
