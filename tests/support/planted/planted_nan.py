"""A lever whose time on the virtual clock is no number."""

from __future__ import annotations

from tests.support.planted_lever import Planted, named

LEVER = Planted("planted_nan", wrap=lambda launch: named(launch, "kernel=nan", float("nan")))
