"""What a lever is given of a site: its callable to swap, and what was seen there to read.

A lever does not say what ran: the workload counts that where the work is done, so that one that
changes nothing cannot claim that it did. Its callable may tell *which* kernel it launched (by its
attribute ``ran``, or by the autograd node of its result); whether and how often is counted outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

from levers.errors import LeverConflict

if TYPE_CHECKING:
    from levers.base import Site

Seen = dict[str, dict[str, int]]
"""Counts of plans by axis."""

RESERVED = ("observe", "forget")
"""Names of what the workload alone does with a site."""

CURE = "leave it to the workload; the callable may name its kernel by an attribute called ran"


class Handle:
    """A site without what writes its observations; ``launch`` is the site's own."""

    __slots__ = ("_get", "_put", "_seen", "name")

    def __init__(self, site: Site) -> None:
        def put(launch: Callable[..., Any]) -> None:
            site.launch = launch

        self.name = site.name
        self._get: Callable[[], Callable[..., Any]] = lambda: site.launch
        self._put = put
        self._seen: Callable[[], Seen] = lambda: {
            axis: dict(plans) for axis, plans in site.observations.items()
        }

    @property
    def launch(self) -> Callable[..., Any]:
        """The callable in use."""
        return self._get()

    @launch.setter
    def launch(self, launch: Callable[..., Any]) -> None:
        self._put(launch)

    @property
    def observations(self) -> Seen:
        """A copy of what was seen: counts of plans by axis."""
        return self._seen()

    def observe(self, axis: str, plan: str) -> NoReturn:
        """Refused.

        Raises:
            LeverConflict: always.
        """
        raise LeverConflict(
            f"a lever said that {plan!r} ran on {axis} at {self.name}: it may not write what was "
            "seen there",
            cure=CURE,
        )

    def forget(self) -> NoReturn:
        """Refused.

        Raises:
            LeverConflict: always.
        """
        raise LeverConflict(
            f"a lever would drop what was seen at {self.name}: that is the workload's", cure=CURE
        )


def held(site: Site) -> Site:
    """The site as a lever may hold it."""
    return cast("Site", Handle(site))
