"""The noise on which rules are held against each other: simulated models, and what was recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.verdict_rules import Floats
from experiments import bundles
from experiments.calibration.records import Calibration
from experiments.plan import BLOCK_PAIRS
from experiments.run_record import RunRecord
from experiments.simulated_noise import MODELS, Model
from experiments.simulated_runs import Rules
from experiments.stats import axis_effect, paired
from levers.policy import Axis, GatingPolicy

Draw = Callable[[np.random.Generator, int, int], Floats]
"""(generator, runs, pairs) -> log slowness x_Rn2 of each process in time order, arms equal."""

SEGMENT_PAIRS = 5 * BLOCK_PAIRS
"""Recorded noise is drawn in stretches of this length, so that its drifts stay in it."""


@dataclass(frozen=True)
class Noise:
    """Noise of equal arms; ``run_s`` is the device time of one process, in seconds."""

    name: str
    draw: Draw
    run_s: float
    smallest: float
    """Smallest effect that must be found, a log ratio; half of it is worth keeping at least."""

    @property
    def rules(self) -> Rules:
        """Our own rules for this question: one axis, half of the smallest effect as bar."""
        bar = self.smallest / 2
        policy = GatingPolicy(primaries=("rate",), smallest_gain=bar, primary_margin=bar)
        return Rules(policy, (Axis("rate", "tok/s", True),))


@dataclass(frozen=True)
class Modelled:
    """Draws of a simulated model at this standard deviation of d."""

    model: Model
    sd: float

    def __call__(self, rng: np.random.Generator, runs: int, pairs: int) -> Floats:
        """Log slowness x_Rn2."""
        x_Rn2: Floats = self.model(rng, runs, pairs, 1, self.sd)[..., 0]
        return x_Rn2


@dataclass(frozen=True)
class Resampled:
    """Draws of recorded pairs, in stretches that go on from the end to the beginning."""

    levels_n2: Floats

    def __call__(self, rng: np.random.Generator, runs: int, pairs: int) -> Floats:
        """Log slowness x_Rn2."""
        count = -(-pairs // SEGMENT_PAIRS)
        starts = rng.integers(0, len(self.levels_n2), (runs, count, 1))
        chosen = (starts + np.arange(SEGMENT_PAIRS)) % len(self.levels_n2)
        x_Rn2: Floats = self.levels_n2[chosen.reshape(runs, -1)[:, :pairs]]
        return x_Rn2


def simulated(sd: float, run_s: float, smallest: float) -> Iterator[Noise]:
    """Every simulated model at this standard deviation."""
    for name, model in MODELS.items():
        yield Noise(f"{name}, s = {sd * 100:g} %", Modelled(model, sd), run_s, smallest)


def recorded(path: Path, wanted: str) -> Iterator[Noise]:
    """The noise of each axis that fits the pattern, from a calibration or a bundle."""
    series, seconds_per_pair = _series(path)
    for axis, pairs in series.items():
        if wanted not in axis:
            continue
        levels_n2 = np.array(pairs, dtype=np.float64)
        sd = float((levels_n2[:, 0] - levels_n2[:, 1]).std(ddof=1))
        smallest = max(0.02, round(2 * sd, 2))
        name = f"recorded {axis}, s = {sd * 100:.2g} %"
        yield Noise(name, Resampled(levels_n2), seconds_per_pair / 2, smallest)


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
