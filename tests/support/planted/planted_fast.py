"""A lever that is 20 % faster on the virtual clock, and exact."""

from __future__ import annotations

from tests.support.planted_lever import Planted, named

LEVER = Planted("planted_fast", wrap=lambda launch: named(launch, "kernel=fast", 0.8))
