"""Several levers as one, so that ``levergate ab`` decides the whole set against the reference.

:func:`plugin` writes a lever file for a set; the digests of its members stand in the file, so that
a verdict on the whole is bound to the source of each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.spec import LeverSetting
from experiments.stack.policy import policy_of
from experiments.stack.prepare import typed
from levers import catalog
from levers.base import (
    OFF,
    Facts,
    Lever,
    OpCase,
    Settings,
    Site,
    claims,
)
from levers.errors import UsageError
from levers.known_reports import KnownReport, known_reports
from levers.policy import GatingPolicy
from levers.source import source_digest

NAME = "whole_stack"
ON = "on"

SEED = 20261130
"""Of the comparisons of whole sets: inputs of the op cases are drawn by it, so that what a set has
passed in one of them is found again in another."""


@dataclass(frozen=True)
class Together:
    """A set of levers, each at its own setting, switched as one."""

    members: tuple[LeverSetting, ...]
    name: str = NAME
    settings: Settings = field(default_factory=lambda: Settings((OFF, ON)))
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()

    @property
    def env(self) -> str:
        """The kill switch of the set; its members' own are set beside it."""
        return f"LEVER_{self.name.upper()}"

    @property
    def levers(self) -> tuple[Lever, ...]:
        """The members, in the order in which they are enabled."""
        return tuple(catalog.get(one.lever) for one in self.members)

    @property
    def summary(self) -> str:
        return " + ".join(map(str, self.members))

    @property
    def touches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(site for lever in self.levers for site in lever.touches))

    @property
    def workloads(self) -> tuple[str, ...]:
        """Those that every member has sites in."""
        first, *others = self.levers
        return tuple(w for w in first.workloads if all(w in one.workloads for one in others))

    @property
    def at_import(self) -> bool:
        return any(lever.at_import for lever in self.levers)

    def policy(self, facts: Facts) -> GatingPolicy:
        """No stronger than the weakest claim among the members."""
        return policy_of(self.levers, facts)  # type: ignore[arg-type]

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        del setting
        return tuple(
            f"{one}: {reason}"
            for one, lever in self._pairs()
            for reason in lever.unmet(facts, one.setting)
        )

    def environment(self, setting: str) -> Mapping[str, str]:
        """What its members declare. Their own kill switches would say nothing that the set's does
        not, and a declared variable costs each process a fresh interpreter.
        """
        del setting
        found: dict[str, str] = {}
        for one, lever in self._pairs():
            found |= lever.environment(one.setting)
        return found

    def enable(self, site: Site, setting: str) -> object:
        """Enable each member that touches the site; what was enabled is undone if one fails."""
        del setting
        undone: list[tuple[Lever, object]] = []
        try:
            for one, lever in self._pairs():
                if site.name in lever.touches:
                    undone.append((lever, lever.enable(site, one.setting)))
        except BaseException:
            self.disable(site, undone)
            raise
        return undone

    def disable(self, site: Site, undo: object) -> None:
        assert isinstance(undo, list)
        for lever, its in reversed(undo):
            lever.disable(site, its)

    def witness(self, site: Site) -> Mapping[str, str]:
        """What each member that touches the site saw, by axis; so the record names the members."""
        found: dict[str, str] = {}
        for one, lever in self._pairs():
            if site.name in lever.touches:
                for axis, plan in lever.witness(site).items():
                    said = f"{one}: {plan}"
                    found[axis] = f"{found[axis]}; {said}" if axis in found else said
        return found

    def known_reports(self, setting: str) -> tuple[KnownReport, ...]:
        """Those of all members."""
        del setting
        return tuple(r for one, lever in self._pairs() for r in known_reports(lever, one.setting))

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """The cases of all members, each named after its own."""
        del setting
        return [
            dataclasses.replace(case, name=f"{lever.name}: {case.name}")
            for one, lever in self._pairs()
            for case in lever.op_cases(one.setting, device)
        ]

    def _pairs(self) -> Iterator[tuple[LeverSetting, Lever]]:
        yield from zip(self.members, self.levers, strict=True)


def together(*texts: str, name: str = NAME) -> Together:
    """The lever of a set, ``lever=setting`` each, in the order in which they are enabled."""
    return Together(typed(texts), name)


def plugin(folder: Path, texts: Sequence[str], name: str = NAME) -> Path:
    """Write the set's lever file into a folder for ``LEVERGATE_LEVERS``.

    Raises:
        UsageError: a member is unknown, off, or conflicts with another; or no lever can have that
            name.
    """
    taken = {target.removesuffix(":LEVER").rpartition(".")[2] for target in catalog.BUILT_IN}
    if not name.isidentifier() or name in taken:
        raise UsageError(
            f"a set of levers cannot be named {name!r}", cure="use a free name, such as block_rows"
        )
    folder.mkdir(parents=True, exist_ok=True)  # the catalog reads it where it is already named
    whole = together(*texts, name=name)
    claims(whole.levers)
    named = "".join(f"    {str(one)!r},\n" for one in whole.members)
    digests = "".join(f"    {lever.name!r}: {source_digest(lever)!r},\n" for lever in whole.levers)
    path = folder / f"{name}.py"
    path.write_text(
        f'"""Several levers as one: {whole.summary}."""\n\n'
        "from benchmarks.whole_stack import together\n\n"
        f"SOURCES = {{\n{digests}}}\n\nLEVER = together(\n{named}    name={name!r},\n)\n"
    )
    return path
