"""A lever that is 20 % slower on the virtual clock, and exact."""

from __future__ import annotations

from tests.support.planted_lever import Planted, named

LEVER = Planted("planted_slow", wrap=lambda launch: named(launch, "kernel=slow", 1.2))
