"""A lever that sets a variable and then raises while it is enabled."""

from __future__ import annotations

import os

from tests.support.planted_lever import Planted


def fail() -> None:
    os.environ["PLANTED_LEAK"] = "1"
    raise ValueError("enable cannot")


LEVER = Planted("planted_raising", lambda launch: launch, at_enable=fail)
