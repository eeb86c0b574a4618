"""What an arm's untimed pass showed: the path that ran, what was counted, what was left changed."""

from __future__ import annotations

from pydantic import Field

from experiments.records import Arm
from experiments.values import FrozenMap, Scalar, Value

COUNTED = "counted."
"""Beginning of the facts that hold what a site itself counted; the site and its axis follow."""


WORK = "work"
"""The fact that holds a digest of the operators, kernels and launches of an arm's witness pass."""


class Witness(Value):
    """What proves which path an arm ran: a plan per axis, read in an untimed pass.

    ``plans`` maps an axis to the plan that ran (such as ``num_splits=7``); ``launches`` counts the
    observations per site; ``left_changed`` lists what enable/disable left changed (empty: nothing);
    ``facts`` hold what else the pass found, such as the autotuners' winners, what the sites counted
    without the lever's words, and a digest of the work that was done.
    """

    arm: Arm
    plans: FrozenMap[str]
    launches: FrozenMap[int]
    left_changed: tuple[str, ...] = ()
    facts: FrozenMap[Scalar] = Field(default_factory=dict)

    @property
    def work(self) -> str:
        """Digest of the work of the pass; empty where it was not seen."""
        return str(self.facts.get(WORK, ""))

    @property
    def counted(self) -> dict[str, str]:
        """What each site counted on each axis; empty in records made before this was kept."""
        return {
            name.removeprefix(COUNTED): str(value)
            for name, value in self.facts.items()
            if name.startswith(COUNTED)
        }
