"""A lever that does what the fast one does and a little more, and so takes its gain in."""

from __future__ import annotations

from tests.support.planted_lever import Planted, named

LEVER = Planted(
    "planted_takes_in",
    wrap=lambda launch: named(launch, "kernel=takes-in", 0.75),
    supersedes=("planted_fast", "planted_on_top"),
)
