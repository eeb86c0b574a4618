"""What a lever is: the protocol, its settings, the sites it changes, and ``engaged``.

A lever is one switchable optimisation. The workload exposes *sites* (named slots that hold the
callable in use); a lever swaps the callable of the sites it touches and puts back what it found.
Torch is not imported here: the tensors of :class:`OpCase` are opaque to this module.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from levers.errors import BadSetting, LeverConflict, NotRestored
from levers.handle import held
from levers.policy import GatingPolicy

if TYPE_CHECKING:
    from torch import Tensor

OFF = "off"

NUMBER = re.compile(r"-?[0-9]{1,18}")
"""A setting from a range, as it is typed."""


@dataclass(slots=True)
class Site:
    """A named slot of a workload: the callable in use, and what was seen to run through it.

    ``launch`` is what the workload calls. ``observations`` is written by the workload *where the
    work is done* (the split count handed to the kernel, the backward that ran), keyed by axis. A
    lever is given a :class:`~levers.handle.Handle` of the site, which cannot write it.
    """

    name: str
    launch: Callable[..., Any]
    observations: dict[str, dict[str, int]] = field(default_factory=dict)

    def observe(self, axis: str, plan: str) -> None:
        """Count one launch of ``plan`` (such as ``num_splits=3``) while ``axis`` was exercised."""
        plans = self.observations.setdefault(axis, {})
        plans[plan] = plans.get(plan, 0) + 1

    def forget(self) -> None:
        """Drop the observations, before a witness pass."""
        self.observations.clear()


class Facts(Protocol):
    """What a lever may know of the device and the workload before anything runs (torch-free)."""

    @property
    def device_type(self) -> str:
        """``cpu`` or ``cuda``."""

    @property
    def workload(self) -> str:
        """The workload's name, such as ``decode``."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The workload's resolved parameters."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites that the workload exposes with these parameters."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that a lever takes: names (``off`` among them) and an optional N range."""

    names: tuple[str, ...]
    minimum: int | None = None
    maximum: int | None = None

    def __post_init__(self) -> None:
        if OFF not in self.names:
            raise ValueError(f"settings {self.names} lack 'off': every lever can be switched off")

    def check(self, lever: str, setting: str) -> str:
        """Return the setting in canonical form.

        Raises:
            BadSetting: not a name of this lever and not an integer in its range.
        """
        if setting in self.names:
            return setting
        low, high = self.minimum, self.maximum
        if low is not None and high is not None and NUMBER.fullmatch(setting):
            if low <= int(setting) <= high:
                return str(int(setting))
            raise BadSetting(
                f"{lever}: setting {setting} is out of range", cure=f"use {self.describe()}"
            )
        raise BadSetting(f"{lever} has no setting {setting!r}", cure=f"use {self.describe()}")

    def describe(self) -> str:
        """The settings as shown to a user: ``off | auto | 1..128``."""
        numeric = [] if self.minimum is None else [f"{self.minimum}..{self.maximum}"]
        return " | ".join([*self.names, *numeric])


@dataclass(frozen=True, slots=True)
class OpCase:
    """One case of the op check: the changed operation at one shape, dtype and kind of values.

    ``reference`` and ``candidate`` write into preallocated ``outputs``, which the check poisons
    before each call and which must be written fully. ``truth`` returns fp64 tensors of the same
    shapes. ``masks`` (one bool tensor an output, True where a non-finite value is right) is only
    for cases whose inputs hold NaN or Inf. ``reorderings`` are the reference at its other valid
    orders of reduction (permuted keys, the split counts that it picks itself at another load):
    their spread against truth bounds what a candidate may show and still be lossless.
    """

    name: str
    inputs: Callable[[int], tuple[Tensor, ...]]
    outputs: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
    reference: Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], None]
    candidate: Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], None]
    truth: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
    masks: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] | None = None
    elements: int = 0
    reorderings: tuple[Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], None], ...] = ()


@runtime_checkable
class Lever(Protocol):
    """One switchable optimisation, registered in the catalog or through an entry point.

    Attributes:
        name: as typed on the command line; also the MLflow experiment.
        summary: one line.
        settings: what ``--ref`` and ``--cand`` take.
        env: the kill switch, such as ``LEVER_FA2_NSPLITS_CAP``; its value is a setting.
        touches: names of the sites it changes.
        supersedes, composes_with: levers with which it may share a site.
        workloads: the workloads that have its sites; the first one is the default of ``ab``.
        at_import: it changes something while modules are imported, so that each arm needs a fresh
            interpreter instead of a fork of a warm one.
    """

    name: str
    summary: str
    settings: Settings
    env: str
    touches: tuple[str, ...]
    supersedes: tuple[str, ...]
    composes_with: tuple[str, ...]
    workloads: tuple[str, ...]
    at_import: bool

    def policy(self, facts: Facts) -> GatingPolicy:
        """The bar for default-ON on this device and workload."""

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """The reasons why it cannot run here; empty means that it can."""

    def environment(self, setting: str) -> Mapping[str, str]:
        """Variables beside the kill switch that the arm's process needs from its start."""

    def enable(self, site: Site, setting: str) -> object:
        """Change the site and return what ``disable`` needs to put back exactly what was found."""

    def disable(self, site: Site, undo: object) -> None:
        """Put back what ``enable`` found."""

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, the plan that ran, from the site's observations."""

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """The cases of the op check; imports torch inside."""


@contextlib.contextmanager
def engaged(lever: Lever, sites: Mapping[str, Site], setting: str) -> Iterator[None]:
    """Enable a lever on all the sites it touches, and always restore them, also after an error.

    Raises:
        LeverConflict: the workload lacks a site that the lever touches.
        NotRestored: ``disable`` left another callable than ``enable`` had found.
    """
    if setting == OFF:
        yield
        return
    missing = [name for name in lever.touches if name not in sites]
    if missing:
        raise LeverConflict(
            f"{lever.name} touches {missing}, which this workload does not have",
            cure=f"its sites are {sorted(sites)}",
        )
    found = {name: sites[name].launch for name in lever.touches}
    undone: list[tuple[Site, object]] = []
    try:
        for name in lever.touches:
            held_site = held(sites[name])
            undone.append((held_site, lever.enable(held_site, setting)))
        yield
    finally:
        _restore(lever, undone, {sites[name].name: (sites[name], found[name]) for name in found})


def _restore(
    lever: Lever,
    undone: list[tuple[Site, object]],
    found: Mapping[str, tuple[Site, Callable[..., Any]]],
) -> None:
    """Undo in reverse order, then check that each site holds the very object that was found.

    A site whose ``enable`` raised half-way has nothing to undo and is put back from ``found``.
    """
    for site, undo in reversed(undone):
        lever.disable(site, undo)
    left: list[str] = []
    enabled = {site.name for site, _ in undone}
    for name, (site, launch) in found.items():
        if site.launch is launch:
            continue
        site.launch = launch
        if name in enabled:
            left.append(name)
    if left:
        raise NotRestored(
            f"{lever.name}: disable left {', '.join(left)} changed",
            cure="put back the object that enable found, not a default",
        )


def compile_seconds(lever: Lever) -> float:
    """Seconds that a first process of the lever spends on compiling.

    A lever that compiles declares them as ``compile_s``; they go into the estimate before a run.
    """
    return float(getattr(lever, "compile_s", 0.0))


def claims(levers: Sequence[Lever]) -> None:
    """Check all claims on sites before the first change.

    Raises:
        LeverConflict: two levers touch one site and neither supersedes or composes with the other.
    """
    for i, one in enumerate(levers):
        for other in levers[i + 1 :]:
            shared = sorted(set(one.touches) & set(other.touches))
            agreed = (
                {*one.supersedes, *one.composes_with},
                {*other.supersedes, *other.composes_with},
            )
            if shared and other.name not in agreed[0] and one.name not in agreed[1]:
                raise LeverConflict(
                    f"{one.name} and {other.name} both change {', '.join(shared)}",
                    cure="one of them must declare supersedes or composes_with the other",
                )
