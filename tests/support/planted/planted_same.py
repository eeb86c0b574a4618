"""A lever that runs the same work under another plan, at the same cost."""

from __future__ import annotations

from tests.support.planted_lever import Planted, named

LEVER = Planted("planted_same", wrap=lambda launch: named(launch, "kernel=same"))
