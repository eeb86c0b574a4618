"""A lever that changes nothing: its plan is the reference's."""

from __future__ import annotations

from tests.support.planted_lever import Planted

LEVER = Planted("planted_noop", wrap=lambda launch: launch)
