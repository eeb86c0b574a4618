"""This procedure against the rules that other tools use, on the same noise: errors, power, cost.

The question is always: does the candidate's rate differ from the reference's, and which way? The
rules of other tools: one run each, difference of means with a threshold, unpaired Welch and
Mann-Whitney tests, and intervals that do not overlap; each with all runs of one arm before those of
the other ("legs"), with the arms in turn ("alternating"), and in turn with the first of each two
drawn ("shuffled", which few tools do). Ours is the real stopping loop. Half of the smallest effect
that must be found is its gain worth keeping and its guard's margin, and the threshold of the rules
that have one (2 % and 1 % by default; on recorded noise the smallest effect is 2 s). Where the arms
are equal ours must *prove* that the effect is small, while the others need only fail to see one.

For each noise, three ways to use the others:
- *as used*, 10 runs an arm: their share of false verdicts and their power;
- *sized*: their own threshold, and the fewest runs that keep 5 % false verdicts at our power;
- *tuned*: the threshold, too, is set on this very noise, to our rate of false verdicts (0.5 % at
  least, since draws show no less) and our power: more than a user can know, and its cost is free.
Then the device seconds that a right verdict takes over a mix of true effects, the best of them over
ours. Last, what a user needs who does not know the noise: one rule with one number of runs that
keeps its errors on every noise of the list.

    python -m benchmarks.verdicts --recorded calibration.json --out verdicts.json

``--recorded`` takes what ``levergate calibrate --json`` printed, or an evidence bundle, whose
effects are then taken out; without it only simulated noise is used.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import verdict_tables as tables
from benchmarks.verdict_noise import Noise, recorded, simulated
from benchmarks.verdict_rules import (
    FALSE_LIMIT,
    LAYOUTS,
    RULES,
    SIZES,
    USUAL_SIZE,
    Floats,
    Rule,
    arms,
)
from experiments.simulated_noise import log_ratios, orders
from experiments.simulated_runs import UNDECIDED, run_all
from experiments.spec import DEFAULT_LOOKS

MIX = {0.0: 1 / 3, 1.0: 1 / 6, -1.0: 1 / 6, 2.5: 1 / 6, -2.5: 1 / 6}
"""True effects, in multiples of the smallest one, and their shares: a third change nothing."""

LEAST_ERROR = 0.005
"""Rates of false verdicts and of misses below this are not told apart by the draws."""

OFF_REASONS = ("regression", "slower", "no-failing-axis-win")
SMALL_REASONS = ("not-worth-keeping", "no-failing-axis-win")


def ours(noise: Noise, runs: int, seed: int) -> dict[str, Any]:
    """Errors, power and cost of the real stopping loop."""
    rows = {}
    for effect in MIX:
        rng = np.random.default_rng(seed)
        drawn = orders(rng, runs, DEFAULT_LOOKS[-1])
        x = noise.draw(rng, runs, DEFAULT_LOOKS[-1])
        d = log_ratios(x[..., None], drawn) + effect * noise.smallest
        ends = run_all(noise.rules, d, drawn)
        on = ends.rate("failing-axis-win")
        if effect > 0:
            right, wrong = on, ends.rate(*OFF_REASONS, "not-worth-keeping")
        elif effect < 0:
            right, wrong = ends.rate(*OFF_REASONS), on + ends.rate("not-worth-keeping")
        else:
            right, wrong = ends.rate(*SMALL_REASONS), on + ends.rate("regression", "slower")
        rows[effect] = {
            "right": right,
            "wrong": wrong,
            "undecided": ends.rate(UNDECIDED),
            "device_s": float(ends.pairs.mean()) * 2 * noise.run_s,
        }
    return {"rule": "ours", "effects": rows, **_summary(rows)}


def judged(found: Mapping[float, Floats], threshold: float, device_s: float) -> dict[str, Any]:
    """How often the verdicts at this threshold are right and wrong, for each true effect."""
    rows = {}
    for effect, score in found.items():
        faster, slower = (score > threshold).mean(), (score < -threshold).mean()
        if effect == 0:
            right, wrong = 1 - faster - slower, faster + slower
        else:
            right, wrong = (faster, slower) if effect > 0 else (slower, faster)
        rows[effect] = {"right": float(right), "wrong": float(wrong), "device_s": device_s}
    return {"effects": rows, **_summary(rows)}


def _summary(rows: Mapping[float, Mapping[str, float]]) -> dict[str, float]:
    """False verdicts of equal arms, power at the smallest effect, and seconds per right verdict."""
    right = sum(MIX[effect] * row["right"] for effect, row in rows.items())
    seconds = sum(MIX[effect] * row["device_s"] for effect, row in rows.items())
    return {
        "false": rows[0.0]["wrong"],
        "power": min(rows[1.0]["right"], rows[-1.0]["right"]),
        "mean_device_s": seconds,
        "device_s_per_right": seconds / right if right else math.inf,
    }


@dataclass(frozen=True)
class Use:
    """One rule in one layout with n runs an arm: at its own threshold, and tuned."""

    rule: str
    layout: str
    n: int
    own: dict[str, Any]
    tuned: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.rule} ({self.layout})"


def uses(noise: Noise, false: float, runs: int, seed: int) -> Iterator[Use]:
    """Every rule, layout and size on this noise; tuned to this share of false verdicts.

    All rules of a layout and size are given the same draws.
    """
    drawn = {
        (layout, n): _scored(noise, layout, n, runs, seed) for layout in LAYOUTS for n in SIZES
    }
    for rule in RULES:
        for layout in LAYOUTS[: 1 if rule.most == 1 else None]:
            for n in filter(rule.takes, SIZES):
                yield _use(rule, layout, n, noise, false, drawn[layout, n][rule.name])


def _scored(
    noise: Noise, layout: str, n: int, runs: int, seed: int
) -> dict[str, dict[float, Floats]]:
    """The scores of each rule that takes n runs, for each true effect, on the same draws."""
    rng = np.random.default_rng(seed)
    ref, cand = arms(rng, noise.draw(rng, runs, n), n, layout)
    shifts = [effect * noise.smallest for effect in MIX]
    return {
        rule.name: dict(zip(MIX, rule.rate(ref, cand, shifts), strict=True))
        for rule in RULES
        if rule.takes(n)
    }


def _use(
    rule: Rule, layout: str, n: int, noise: Noise, false: float, found: Mapping[float, Floats]
) -> Use:
    level = float(np.quantile(np.abs(found[0.0]), 1 - false))
    device_s = 2 * n * noise.run_s
    used = noise.smallest / 2 if rule.threshold is None else rule.threshold
    own, tuned = (judged(found, at, device_s) for at in (used, level))
    return Use(rule.name, layout, n, own, {**tuned, "threshold": level})


def fewest(found: Sequence[Use], which: str, false: float, power: float) -> dict[str, Any]:
    """For each rule and layout the fewest runs that keep both; None where none of the sizes do."""
    best: dict[str, Any] = {}
    for use in found:
        seen = use.own if which == "own" else use.tuned
        best.setdefault(use.name, None)
        if best[use.name] is None and seen["false"] <= false and seen["power"] >= power:
            best[use.name] = {"n": use.n, **seen}
    return best


def cheapest(sized: Mapping[str, Any]) -> tuple[str, float]:
    """The rule with the fewest device seconds to a right verdict; infinite where none has any."""
    costs = {name: row["device_s_per_right"] for name, row in sized.items() if row is not None}
    name = min(costs, key=lambda one: costs[one], default="none of them")
    return name, costs.get(name, math.inf)


def measure(noise: Noise, runs: int, seed: int) -> dict[str, Any]:
    mine = ours(noise, runs, seed)
    power = min(1 - LEAST_ERROR, mine["power"])
    false = max(LEAST_ERROR, mine["false"])
    found = list(uses(noise, false, runs, seed + 1))
    slack = 2 * math.sqrt(FALSE_LIMIT * (1 - FALSE_LIMIT) / runs)
    sized = fewest(found, "own", FALSE_LIMIT + slack, power)
    tuned = fewest(found, "tuned", false + 1 / runs, power)
    answer: dict[str, Any] = {"noise": noise.name, "smallest": noise.smallest, "run_s": noise.run_s}
    answer |= {"ours": mine}
    answer |= {"false_asked": false, "power_asked": power, "sized": sized, "tuned": tuned}
    for way, rows in (("sized", sized), ("tuned", tuned)):
        name, cost = cheapest(rows)
        answer[f"best_{way}"] = name
        answer[f"ratio_{way}"] = cost / mine["device_s_per_right"]
    answer["uses"] = [
        {"rule": use.rule, "layout": use.layout, "n": use.n, **use.own} for use in found
    ]
    return answer


def everywhere(found: Sequence[Mapping[str, Any]], power: float, runs: int) -> list[dict[str, Any]]:
    """Rules with one size that keep 5 % false verdicts and this power on every noise."""
    slack = 2 * math.sqrt(FALSE_LIMIT * (1 - FALSE_LIMIT) / runs)
    rows = []
    for same in zip(*(one["uses"] for one in found), strict=True):
        row = {key: same[0][key] for key in ("rule", "layout", "n")}
        row["false"] = max(one["false"] for one in same)
        row["power"] = min(one["power"] for one in same)
        row["device_s_per_right"] = float(np.mean([one["device_s_per_right"] for one in same]))
        row["holds"] = row["false"] <= FALSE_LIMIT + slack and row["power"] >= power
        rows.append(row)
    return rows


def measured(noises: Sequence[Noise], runs: int, seed: int, jobs: int) -> Iterator[dict[str, Any]]:
    """Each noise in one of so many processes, shown in their order as they come."""
    with concurrent.futures.ProcessPoolExecutor(min(jobs, len(noises))) as pool:
        for found in pool.map(measure, noises, repeat(runs), repeat(seed)):
            tables.show(found)
            yield found


def _without_effects(found: Any) -> Any:
    """What was found without the rows of each true effect, which their sums stand for."""
    if isinstance(found, dict):
        return {key: _without_effects(value) for key, value in found.items() if key != "effects"}
    return [_without_effects(value) for value in found] if isinstance(found, list) else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path, action="append", default=[])
    parser.add_argument("--axis", default="tok_s", help="which recorded axes: a part of the name")
    parser.add_argument("--sd", type=float, action="append", help="simulated s, in percent")
    parser.add_argument("--smallest", type=float, default=2.0, help="effect to find, in percent")
    parser.add_argument("--run-s", type=float, default=3.0, help="seconds of a simulated run")
    parser.add_argument("--runs", type=int, default=2000, help="drawn runs behind each figure")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="noises at once")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    noises = [n for path in asked.recorded for n in recorded(path, asked.axis)]
    for sd in asked.sd or [0.5, 1.0]:
        noises += simulated(sd / 100, asked.run_s, asked.smallest / 100)
    found = list(measured(noises, asked.runs, asked.seed, asked.jobs))
    power = min(1 - LEAST_ERROR, *(one["ours"]["power"] for one in found))
    all_ = everywhere(found, power, asked.runs)
    tables.summary(found, all_)
    if asked.out:
        for one in found:
            one["uses"] = [row for row in one["uses"] if row["n"] in (1, USUAL_SIZE)]
        holding = [row for row in all_ if row["holds"]]
        answer = {"mix": MIX, "runs": asked.runs, "results": found, "everywhere": holding}
        asked.out.write_text(json.dumps(_without_effects(answer), indent=1) + "\n")
        print(f"\nwrote {asked.out}")


if __name__ == "__main__":
    main()
