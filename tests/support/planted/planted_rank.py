"""A lever that fails on one rank only (``RANK`` 1), at the second of the timed steps."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from levers.base import Settings, Site
from levers.policy import GatingPolicy
from tests.support.planted_lever import Launch, Planted

FAILS_AT = 3
"""Calls before: the warm-up and the first timed step."""


class OnOneRank(Planted):
    def policy(self, facts: Any) -> GatingPolicy:
        return GatingPolicy(primaries=("train/tok_s",))

    def enable(self, site: Site, setting: str) -> object:
        found = site.launch
        site.launch = faulty(setting, found)
        return found


def faulty(how: str, launch: Launch) -> Launch:
    calls = 0

    def call(out: Any) -> Any:
        nonlocal calls
        calls += 1
        if how == "slow":
            time.sleep(0.3)
        if how == "slow-rank" and os.environ.get("RANK") == "1":
            time.sleep(0.05)
        if calls == FAILS_AT and os.environ.get("RANK") == "1":
            fail(how)
        return launch(out)[0], f"plan={how}"

    return call


def fail(how: str) -> None:
    if how == "raise":
        raise RuntimeError("this rank cannot")
    if how == "memory":
        raise RuntimeError("out of memory on this rank")
    if how == "exit":
        sys.stderr.write("last words\n")
        os._exit(7)
    if how == "hang":
        time.sleep(600)


LEVER = OnOneRank(
    "planted_rank",
    wrap=lambda launch: launch,
    settings=Settings(
        ("off", "on", "raise", "memory", "exit", "hang", "slow", "slow-rank"),
    ),
    touches=("ranked.output",),
    workloads=("ranked",),
)
