"""The record of a selection: what became of each setting, and which one was measured again."""

from __future__ import annotations

import math
from typing import Literal

from experiments.records import Decision, Effect
from experiments.requests import AbRequest
from experiments.values import SCHEMA_VERSION, Value
from levers.policy import Axis

Fate = Literal["winner", "kept", "dropped", "not-timed"]
"""``kept``: may be worth shipping, but another one looked better. ``not-timed``: no speed."""


DID_NOT_RUN = ("unmet", "not-engaged")
"""Reasons of settings that say nothing of the others."""


class SettingResult(Value):
    """One setting in the selection.

    Attributes:
        decision: how the rules read it, with the family's error controlled; a reading of a
            survivor (``default-ON``, ``inconclusive``) is no verdict.
        run_id: its evidence: samples, parity, witnesses, in a folder of the selection.
        effects: of all axes at its last look; empty where it was not timed.
        score: mean log ratio over the primary axes, or None.
    """

    setting: str
    fate: Fate
    decision: Decision
    run_id: str
    rounds: int
    parity: str = ""
    effects: tuple[Effect, ...] = ()
    score: float | None = None


class FamilyHead(Value):
    """A selection before its first process: what is needed to go on with it.

    Attributes:
        runs: each setting with the id of its evidence, in the order of the request.
        budget_s: what the selection itself may take, in seconds.
        request: as typed, for the winner's run.
    """

    schema_version: int = SCHEMA_VERSION
    family_id: str
    runs: tuple[tuple[str, str], ...]
    budget_s: float | None
    request: AbRequest


class FamilyRecord(Value):
    """A selection among several settings of one lever. It is no verdict.

    Attributes:
        looks: rounds at which settings could be dropped.
        stopped: why the selection ended.
        winner: the setting that is measured again on fresh pairs, or None.
        winner_run: the run that decides; empty until it has begun.
    """

    schema_version: int = SCHEMA_VERSION
    kind: Literal["family"] = "family"
    family_id: str
    created_at: str
    lever: str
    ref: str
    workload: str
    device: str
    seed: int
    looks: tuple[int, ...]
    rounds: int
    axes: tuple[Axis, ...]
    primaries: tuple[str, ...]
    settings: tuple[SettingResult, ...]
    stopped: str
    winner: str | None = None
    winner_run: str = ""
    total_s: float = 0.0

    @property
    def ranked(self) -> tuple[SettingResult, ...]:
        """The settings, the winner first, survivors before dropped ones, then by score."""
        place = {"winner": 0, "kept": 1, "dropped": 2, "not-timed": 3}
        return tuple(
            sorted(
                self.settings,
                key=lambda one: (
                    place[one.fate],
                    -(one.score if one.score is not None else -math.inf),
                ),
            )
        )

    @property
    def outcome(self) -> str:
        """What the settings say together where none is left.

        It is no verdict as long as one that ran has none; a setting that cannot run here, or runs
        what the reference runs, says nothing of the others.
        """
        ran = [one.decision for one in self.settings if one.decision.reason not in DID_NOT_RUN]
        found = {decision.outcome.value for decision in ran}
        order = ("invalid", "inconclusive", "terminal", "gated-OFF")
        return next((name for name in order if name in found), "invalid")
