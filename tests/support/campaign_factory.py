"""Rows of campaigns for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.campaign.records import AxisReached, CampaignRow, LeverStanding, RowState
from experiments.campaign.rules import standing
from experiments.records import Outcome

C1, C8 = "decode/tok_s/c1", "decode/tok_s/c8"


def axis(name: str, ratio: float | None, lower: float | None, upper: float | None) -> AxisReached:
    values: dict[str, Any] = {"axis": name, "target": ">= 1.00 x sdpa"}
    if ratio is None or lower is None or upper is None:
        return AxisReached(**values, state="unmeasured", missing="no oracle")
    ends = {"ratio": ratio, "lower": lower, "upper": upper, "blocks": 6, "source": "s"}
    return AxisReached(**values, **ends, state=standing(lower, upper))


def lever(name: str, outcome: Outcome | None, **changes: Any) -> LeverStanding:
    on = outcome is Outcome.DEFAULT_ON
    values: dict[str, Any] = {
        "lever": name,
        "candidates": ("on",),
        "state": "open" if outcome is None else "decided",
        "why": "never measured here" if outcome is None else "",
        "setting": "" if outcome is None else "on",
        "outcome": outcome,
        "reason": "",
        "run_id": "" if outcome is None else f"20260101T000000-{name}",
        "default_state": "on" if on else "off",
        "credited": "gain" if on else "not on",
    }
    return LeverStanding(**{**values, **changes})


def row(
    state: RowState,
    axes: Sequence[AxisReached],
    levers: Sequence[LeverStanding],
    **changes: Any,
) -> CampaignRow:
    values: dict[str, Any] = {
        "row_id": "20261129T230000-abcdef",
        "name": "row-x",
        "created_at": "2026-11-29T23:00:00+00:00",
        "state": state,
        "why": "as said",
        "workload": "decode",
        "device_kind": "test cpu",
        "axes": tuple(axes),
        "levers": tuple(levers),
    }
    return CampaignRow(**{**values, **changes})
