"""The tables of the rules beside each other, as printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.verdict_rules import FALSE_LIMIT, USUAL_SIZE

HEAD = f"{'rule':<38}{'runs/arm':>9}{'false':>8}{'power':>8}{'s/right verdict':>17}"


def show(found: Mapping[str, Any]) -> None:
    """One noise: ours, the others sized, tuned and as used."""
    smallest = f"smallest effect {found['smallest']:.0%}"
    print(f"\n== {found['noise']}; {smallest}; {found['run_s']:.1f} s a run\n{HEAD}")
    _row("ours (planned looks, 6..40 pairs)", "", found["ours"])
    asked = f"false at most {FALSE_LIMIT:.1%}, power {found['power_asked']:.1%}"
    print(f"-- sized: {asked}")
    _sized(found["sized"])
    asked = f"false {found['false_asked']:.1%}, power {found['power_asked']:.1%}"
    print(f"-- tuned on this noise: {asked}")
    _sized(found["tuned"])
    print(f"-- as used, {USUAL_SIZE} runs an arm")
    for row in found["uses"]:
        if row["n"] in (1, USUAL_SIZE):
            _row(f"{row['rule']} ({row['layout']})", row["n"], row)


def _sized(rows: Mapping[str, Any]) -> None:
    for name, row in rows.items():
        if row is None:
            print(f"{name:<38}{'no size reaches it':>20}")
        else:
            _row(name, row["n"], row)


def _row(name: str, n: object, row: Mapping[str, float]) -> None:
    print(
        f"{name:<38}{n!s:>9}{row['false']:>8.1%}{row['power']:>8.1%}"
        f"{row['device_s_per_right']:>17.1f}"
    )


def summary(found: Sequence[Mapping[str, Any]], all_: Sequence[Mapping[str, Any]]) -> None:
    """All noises, and what holds on every one of them."""
    print("\ndevice seconds to a right verdict, best rule of other tools / ours:")
    print(f"{'noise':<46}{'sized':>7}{'tuned':>7}  best sized; best tuned")
    for one in found:
        print(
            f"{one['noise']:<46}{one['ratio_sized']:>7.2f}{one['ratio_tuned']:>7.2f}  "
            f"{one['best_sized']}; {one['best_tuned']}"
        )
    mine = [one["ours"] for one in found]
    print(f"\none rule and size for every noise above (worst case over them)\n{HEAD}")
    cost = float(np.mean([one["device_s_per_right"] for one in mine]))
    worst = {
        "false": max(one["false"] for one in mine),
        "power": min(one["power"] for one in mine),
        "device_s_per_right": cost,
    }
    _row("ours", "", worst)
    holding = sorted((r for r in all_ if r["holds"]), key=lambda r: r["device_s_per_right"])
    for row in holding[:3]:
        _row(f"{row['rule']} ({row['layout']})", row["n"], row)
    if holding:
        print(f"best / ours: {holding[0]['device_s_per_right'] / cost:.2f}")
    else:
        closest = min(all_, key=lambda r: max(r["false"], 1 - r["power"]))
        print(
            "no rule of other tools keeps both errors on all of them; the one that comes closest:"
        )
        _row(f"{closest['rule']} ({closest['layout']})", closest["n"], closest)
