"""The base of the planted twins: the real lever, which also changes what is done after a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.twin_decode import AFTER_STEP
from levers.base import Site
from levers.fa2_nsplits_cap import SITE, Fa2NsplitsCap


class Twin(Fa2NsplitsCap):
    """``fa2_nsplits_cap`` with the same policy, settings and op cases, and a planted difference."""

    touches = (SITE, AFTER_STEP)
    workloads = ("decode_twin",)

    def __init__(self, name: str, summary: str, after: Callable[..., Any]) -> None:
        self.name, self.summary, self.env = name, summary, f"LEVER_{name.upper()}"
        self._after = after

    def enable(self, site: Site, setting: str) -> object:
        """The cap at the split rule; the planted difference after each step."""
        if site.name != AFTER_STEP:
            return super().enable(site, setting)
        found = site.launch
        site.launch = self._after
        return found
