"""A lever that needs a variable before its process imports anything."""

from __future__ import annotations

from tests.support.planted_lever import Planted, named

LEVER = Planted(
    "planted_at_import",
    wrap=lambda launch: named(launch, "kernel=at-import"),
    variables={"PLANTED_EARLY": "1"},
    at_import=True,
)
