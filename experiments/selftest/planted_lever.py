"""What the planted levers are made of: each file in ``planted/`` makes one, with its own fault.

Beside ``off`` and ``on``, a lever on the product takes a number N (the same lever, N percent
slower) and ``wrong`` (the same lever, its output spoilt): with these the self-test is turned red on
purpose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.selftest.launches import Product, contiguous, read_rows
from experiments.selftest.workload import LAYOUT, PRODUCT, RATE
from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, ParityClass

if TYPE_CHECKING:
    from torch import Tensor

WRONG = "wrong"
ON = "on"

LOSSLESS = GatingPolicy(primaries=(RATE,), claims=ParityClass.LOSSLESS)
"""A win on the rate is wanted, and nothing more than 1 % may be lost on it."""

STRICT = GatingPolicy(
    primaries=(RATE,), claims=ParityClass.LOSSLESS, smallest_gain=0.001, primary_margin=0.001
)
"""Any gain is worth keeping and hardly any loss is borne: what is slower is a regression."""

EXACT = GatingPolicy(primaries=(RATE,), claims=ParityClass.BYTE_EXACT)
"""Every bit must be the reference's."""

PRODUCT_SETTINGS = Settings((OFF, ON, WRONG), 1, 90)

CASE_SIZES = (48, 96)
"""Rows and columns of the op cases."""


def nothing() -> None:
    """Do nothing."""


def double(out_NN: Any, right_NN: Any) -> None:
    """Write twice what is right."""
    out_NN.copy_(right_NN * 2)


@dataclass(frozen=True)
class Planted:
    """A lever on one site.

    Attributes:
        launch: what the site launches while the lever is on.
        gate: its policy.
        at_enable: what it does beside, when it is enabled.
        restores: whether ``disable`` puts back what was found.
    """

    name: str
    launch: Callable[..., Any]
    gate: GatingPolicy = LOSSLESS
    site: str = PRODUCT
    at_enable: Callable[[], None] = nothing
    restores: bool = True
    summary: str = "a planted lever"
    settings: Settings = PRODUCT_SETTINGS
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("selftest",)
    at_import: bool = False

    @property
    def env(self) -> str:
        """The kill switch."""
        return f"LEVER_{self.name.upper()}"

    @property
    def touches(self) -> tuple[str, ...]:
        """The one site."""
        return (self.site,)

    def policy(self, facts: Facts) -> GatingPolicy:
        """As it was planted."""
        del facts
        return self.gate

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It runs anywhere; only a product can be slowed or spoilt."""
        del facts
        if setting in (OFF, ON) or isinstance(self.launch, Product):
            return ()
        return (f"setting {setting} is for levers on {PRODUCT}",)

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Put the planted launch into the site."""
        found = site.launch
        self.at_enable()
        site.launch = self.launch_at(setting)
        return found

    def disable(self, site: Site, undo: Any) -> None:
        """Put back what was found, if this lever does."""
        if self.restores:
            site.launch = undo

    def launch_at(self, setting: str) -> Callable[..., Any]:
        """The planted launch, slower or spoilt where the setting says so."""
        launch = self.launch
        if setting == ON or not isinstance(launch, Product):
            return launch
        if setting == WRONG:
            return dataclasses.replace(launch, change=double)
        factor = 1 + int(setting) / 100
        slower = round(launch.rounds * factor)
        return dataclasses.replace(launch, rounds=slower, cost=launch.cost * factor)

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, the plans that ran."""
        return {axis: ", ".join(sorted(plans)) for axis, plans in site.observations.items()}

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """The changed operation at each size, on fresh inputs."""
        del device
        makes = {PRODUCT: product_case, LAYOUT: layout_case}.get(self.site, read_case)
        return tuple(makes(self.launch_at(setting), size) for size in CASE_SIZES)


def product_case(candidate: Callable[..., Any], size: int) -> OpCase:
    """The product against fp64."""
    reference = Product()

    def call(launch: Callable[..., Any]) -> Callable[[Any, Any], None]:
        return lambda inputs, outputs: _ignore(launch(*inputs, outputs[0]))

    return OpCase(
        name=f"product of {size}",
        inputs=lambda seed: (drawn(seed, size), drawn(seed + 1, size)),
        outputs=lambda inputs: (inputs[0].new_empty(size, size),),
        reference=call(reference),
        candidate=call(candidate),
        truth=lambda inputs: (inputs[0].double() @ inputs[1].double(),),
        elements=size * size,
    )


def layout_case(candidate: Callable[..., Any], size: int) -> OpCase:
    """The values must be the same in the same places."""

    def call(launch: Callable[..., Any]) -> Callable[[Any, Any], None]:
        return lambda inputs, outputs: _ignore(outputs[0].copy_(launch(2 * inputs[0])[0]))

    return OpCase(
        name=f"layout of {size}",
        inputs=lambda seed: (drawn(seed, size),),
        outputs=lambda inputs: (inputs[0].new_empty(size, size),),
        reference=call(contiguous),
        candidate=call(candidate),
        truth=lambda inputs: (2 * inputs[0].double(),),
        elements=size * size,
    )


def read_case(candidate: Callable[..., Any], size: int) -> OpCase:
    """A read-out of contiguous rows: what the planted reader was tested with."""

    def call(launch: Callable[..., Any]) -> Callable[[Any, Any], None]:
        return lambda inputs, outputs: _ignore(launch(2 * inputs[0], outputs[0]))

    return OpCase(
        name=f"read-out of {size}",
        inputs=lambda seed: (drawn(seed, size),),
        outputs=lambda inputs: (inputs[0].new_empty(size * size),),
        reference=call(read_rows),
        candidate=call(candidate),
        truth=lambda inputs: (2 * inputs[0].double().reshape(-1),),
        elements=size * size,
    )


def drawn(seed: int, size: int) -> Tensor:
    """Normal values, the same for the same seed."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, size, generator=generator)


def _ignore(_: object) -> None:
    """The calls of an op case return nothing."""
