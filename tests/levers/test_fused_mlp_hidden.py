"""The fused hidden layer in the step; what it shares with its kind is in test_step_levers."""

from __future__ import annotations

from levers.base import engaged
from levers.fused_mlp_hidden import LEVER
from tests.levers.test_step_levers import SLAT_FLOW, SMALL, session


def test_the_linear_still_goes_through_its_own_site() -> None:
    calls = {}
    for setting in ("off", "on"):
        one = session(SLAT_FLOW, SMALL["slat_flow"])
        with engaged(LEVER, one.sites, setting):
            one.exercise()
        seen = one.sites["flow.linear"].observations["train/tok_s"]
        calls[setting] = sum(seen.values())
    assert calls["on"] == calls["off"] > 0
