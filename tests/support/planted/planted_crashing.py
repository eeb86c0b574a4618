"""A lever whose path ends the process: exit, signal or exception by setting."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from levers.base import Settings, Site
from tests.support.planted_lever import Launch, Planted


class Crashing(Planted):
    def enable(self, site: Site, setting: str) -> object:
        found = site.launch
        site.launch = crash(setting)
        return found


def crash(how: str) -> Launch:
    def launch(x_NN: Any, y_NN: Any) -> Any:
        if how == "exit":
            sys.exit(0)
        if how == "quit":
            os._exit(0)
        if how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        raise RuntimeError("the candidate cannot")

    return launch


LEVER = Crashing(
    "planted_crashing",
    wrap=lambda launch: launch,
    settings=Settings(("off", "exit", "quit", "segfault", "raise")),
)
