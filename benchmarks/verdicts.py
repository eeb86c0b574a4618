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

    python benchmarks/verdicts.py --recorded calibration.json --out verdicts.json

``--recorded`` takes what ``levergate calibrate --json`` printed, or an evidence bundle, whose
effects are then taken out; without it only simulated noise is used.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from experiments import bundles
from experiments.calibration.records import Calibration
from experiments.plan import BLOCK_PAIRS
from experiments.run_record import RunRecord
from experiments.simulated_noise import MODELS, log_ratios, orders
from experiments.simulated_runs import UNDECIDED, Rules, run_all
from experiments.spec import DEFAULT_LOOKS
from experiments.stats import axis_effect, paired
from levers.policy import Axis, GatingPolicy

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Floats]
"""(generator, runs, pairs) -> log slowness x_Rn2 of each process in time order, arms equal."""

SIZES = (1, 3, 5, 6, 8, 10, 13, 18, 25, 40, 60, 90, 130, 200, 300)
USUAL_SIZE = 10
MIX = {0.0: 1 / 3, 1.0: 1 / 6, -1.0: 1 / 6, 2.5: 1 / 6, -2.5: 1 / 6}
"""True effects, in multiples of the smallest one, and their shares: a third change nothing."""

FALSE_LIMIT = 0.05
LEAST_ERROR = 0.005
"""Rates of false verdicts and of misses below this are not told apart by the draws."""

SEGMENT_PAIRS = 5 * BLOCK_PAIRS
"""Recorded noise is drawn in stretches of this length, so that its drifts stay in it."""

OFF_REASONS = ("regression", "slower", "no-failing-axis-win")
SMALL_REASONS = ("not-worth-keeping", "no-failing-axis-win")


@dataclass(frozen=True)
class Noise:
    name: str
    draw: Draw
    run_s: float
    smallest: float
    """Smallest effect that must be found, a log ratio; half of it is worth keeping at least."""

    @property
    def rules(self) -> Rules:
        bar = self.smallest / 2
        policy = GatingPolicy(primaries=("rate",), smallest_gain=bar, primary_margin=bar)
        return Rules(policy, (Axis("rate", "tok/s", True),))


# --- the rules of other tools: a signed score, > 0 says faster -----------------------------------


def difference(ref_Rn: Floats, cand_Rn: Floats) -> Floats:
    """Log ratio of the arms' mean times."""
    return np.log(np.exp(ref_Rn).mean(axis=1)) - np.log(np.exp(cand_Rn).mean(axis=1))


def welch(ref_Rn: Floats, cand_Rn: Floats) -> Floats:
    found = scipy_stats.ttest_ind(ref_Rn, cand_Rn, axis=1, equal_var=False)
    return _score(found.statistic, found.pvalue)


def mann_whitney(ref_Rn: Floats, cand_Rn: Floats) -> Floats:
    n = ref_Rn.shape[1]
    method = "exact" if n <= 8 else "asymptotic"
    found = scipy_stats.mannwhitneyu(ref_Rn, cand_Rn, axis=1, method=method)
    return _score(found.statistic - n * n / 2, found.pvalue)


def overlap(ref_Rn: Floats, cand_Rn: Floats) -> Floats:
    """Distance of the means over the sum of both 95 % half-widths; above 1 they do not overlap."""
    n = ref_Rn.shape[1]
    widths = [arm.std(axis=1, ddof=1) / math.sqrt(n) for arm in (ref_Rn, cand_Rn)]
    level = float(scipy_stats.t.ppf(0.975, n - 1))
    return (ref_Rn.mean(axis=1) - cand_Rn.mean(axis=1)) / (level * (widths[0] + widths[1]))


def _score(direction: Floats, p: Floats) -> Floats:
    return np.sign(direction) * -np.log10(np.maximum(p, 1e-300))


@dataclass(frozen=True)
class Rule:
    name: str
    score: Callable[[Floats, Floats], Floats]
    threshold: float | None = None
    """As used: p < .05, no overlap; None is the smallest difference worth keeping."""
    most: int = SIZES[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(n for n in SIZES if (n == 1) == (self.most == 1))


P05 = -math.log10(0.05)
OTHERS = (
    Rule("one run each", difference, None, 1),
    Rule("means with a threshold", difference),
    Rule("Welch t, unpaired", welch, P05),
    Rule("Mann-Whitney, unpaired", mann_whitney, P05),
    Rule("intervals overlap", overlap, 1.0),
)
LAYOUTS = ("legs", "alternating", "shuffled")


def arms(rng: np.random.Generator, x_Rn2: Floats, n: int, layout: str) -> tuple[Floats, Floats]:
    """The reference's and the candidate's n runs each, by the order in which a tool makes them."""
    if layout == "shuffled":
        first = rng.random((len(x_Rn2), n)) < 0.5
        one, other = x_Rn2[:, :n, 0], x_Rn2[:, :n, 1]
        return np.where(first, one, other), np.where(first, other, one)
    if layout == "alternating":
        return x_Rn2[:, :n, 0], x_Rn2[:, :n, 1]
    in_time = x_Rn2[:, :n].reshape(len(x_Rn2), 2 * n)
    return in_time[:, :n], in_time[:, n:]


# --- noise ---------------------------------------------------------------------------------------


def simulated(sd: float, run_s: float, smallest: float) -> Iterator[Noise]:
    for name, model in MODELS.items():

        def draw(rng: np.random.Generator, runs: int, pairs: int, model: Any = model) -> Floats:
            x: Floats = model(rng, runs, pairs, 1, sd)[..., 0]
            return x

        yield Noise(f"{name}, s = {sd * 100:g} %", draw, run_s, smallest)


def recorded(path: Path, wanted: str) -> Iterator[Noise]:
    """The noise of each axis that fits the pattern, from a calibration or a bundle."""
    series, seconds_per_pair = _series(path)
    for axis, pairs in series.items():
        if wanted not in axis:
            continue
        levels_n2 = np.array(pairs, dtype=np.float64)

        def draw(
            rng: np.random.Generator, runs: int, pairs: int, levels: Floats = levels_n2
        ) -> Floats:
            count = -(-pairs // SEGMENT_PAIRS)
            starts = rng.integers(0, len(levels), (runs, count, 1))
            chosen = (starts + np.arange(SEGMENT_PAIRS)) % len(levels)
            return levels[chosen.reshape(runs, -1)[:, :pairs]]

        sd = float((levels_n2[:, 0] - levels_n2[:, 1]).std(ddof=1))
        smallest = max(0.02, round(2 * sd, 2))
        name = f"recorded {axis}, s = {sd * 100:.2g} %"
        yield Noise(name, draw, seconds_per_pair / 2, smallest)


def _series(path: Path) -> tuple[Mapping[str, Sequence[tuple[float, float]]], float]:
    text = path.read_text(encoding="utf-8")
    found = json.loads(text)
    if "calibration" in found or "calibration_id" in found:
        one = Calibration.model_validate(found.get("calibration", found))
        return one.slowness, one.seconds_per_pair
    return _without_effects(bundles.read_bundle(path))


def _without_effects(run: RunRecord) -> tuple[dict[str, list[tuple[float, float]]], float]:
    pairs = paired(run.samples, run.lost)
    series = {}
    for axis in run.axes:
        effect = axis_effect(axis, pairs, (len(pairs),), 0)
        if effect is None:
            continue
        rows = []
        for pair in pairs:
            ref = -axis.sign * math.log(pair.ref[axis.name])
            cand = -axis.sign * math.log(pair.cand[axis.name]) + effect.estimate
            rows.append((ref, cand) if pair.order == 1 else (cand, ref))
        series[axis.name] = rows
    seconds = sum(s.wall_s for s in run.samples if s.arm in ("ref", "cand"))
    return series, seconds / len(pairs)


# --- what each makes of it -----------------------------------------------------------------------


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


def scores(
    rule: Rule, layout: str, noise: Noise, n: int, runs: int, seed: int
) -> dict[float, Floats]:
    """The rule's scores for each true effect, on the same draws."""
    rng = np.random.default_rng(seed)
    ref, cand = arms(rng, noise.draw(rng, runs, n), n, layout)
    return {effect: rule.score(ref, cand - effect * noise.smallest) for effect in MIX}


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
    """Every rule, layout and size on this noise; tuned to this share of false verdicts."""
    for rule in OTHERS:
        for layout in LAYOUTS[: 1 if rule.most == 1 else None]:
            for n in rule.sizes:
                found = scores(rule, layout, noise, n, runs, seed)
                level = float(np.quantile(np.abs(found[0.0]), 1 - false))
                device_s = 2 * n * noise.run_s
                used = noise.smallest / 2 if rule.threshold is None else rule.threshold
                own, tuned = (judged(found, at, device_s) for at in (used, level))
                yield Use(rule.name, layout, n, own, {**tuned, "threshold": level})


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


# --- tables --------------------------------------------------------------------------------------

HEAD = f"{'rule':<38}{'runs/arm':>9}{'false':>8}{'power':>8}{'s/right verdict':>17}"


def show(found: Mapping[str, Any]) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path, action="append", default=[])
    parser.add_argument("--axis", default="tok_s", help="which recorded axes: a part of the name")
    parser.add_argument("--sd", type=float, action="append", help="simulated s, in percent")
    parser.add_argument("--smallest", type=float, default=2.0, help="effect to find, in percent")
    parser.add_argument("--run-s", type=float, default=3.0, help="seconds of a simulated run")
    parser.add_argument("--runs", type=int, default=2000, help="drawn runs behind each figure")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    noises = [n for path in asked.recorded for n in recorded(path, asked.axis)]
    for sd in asked.sd or [0.5, 1.0]:
        noises += simulated(sd / 100, asked.run_s, asked.smallest / 100)
    found = [measure(noise, asked.runs, asked.seed) for noise in noises]
    for one in found:
        show(one)
    power = min(1 - LEAST_ERROR, *(one["ours"]["power"] for one in found))
    all_ = everywhere(found, power, asked.runs)
    summary(found, all_)
    if asked.out:
        for one in found:
            one["uses"] = [row for row in one["uses"] if row["n"] in (1, USUAL_SIZE)]
        holding = [row for row in all_ if row["holds"]]
        answer = {"mix": MIX, "runs": asked.runs, "results": found, "everywhere": holding}
        asked.out.write_text(json.dumps(answer, indent=1) + "\n")
        print(f"\nwrote {asked.out}")


if __name__ == "__main__":
    main()
