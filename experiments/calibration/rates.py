"""From pairs of equal arms to noise and false-verdict rates: resampled runs, real stopping loop.

Whole blocks are drawn from the measured pairs with replacement, and in each drawn run it is drawn
anew which process of a pair is called the reference, by the plan's rule. As both arms were the
same, this is what another run could have been: its true effect is zero on every axis, and the
machine's own tails, drifts and position effect are in it.

Shapes: n measured pairs, R resampled runs, A axes. A difference is the log slowness of a pair's
first process minus that of its second.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, stdtrit

from experiments.calibration.records import AxisNoise, PolicyRates, Rate
from experiments.plan import BLOCK_PAIRS
from experiments.power import smallest_seen
from experiments.sequential import nominal_ps
from experiments.simulated_effects import Floats
from experiments.simulated_noise import orders
from experiments.simulated_runs import HARM, WIN, Rules, run_all
from experiments.stats import lag_one


@dataclass(frozen=True, slots=True)
class Draws:
    """How much is drawn for a rate.

    Attributes:
        runs: behind the rate itself; one of 2.5 % is then known to 0.35 % as far as drawing goes.
        calibrations, runs_each: resampled calibrations, and runs of each: how much the rate depends
            on the pairs that happened to be measured.
    """

    runs: int = 2000
    calibrations: int = 60
    runs_each: int = 200


FULL = Draws()

FEWEST_BLOCKS = 3
"""From fewer blocks hardly any other run could be drawn."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Pairs in time order whose two processes did the same: what runs are resampled from.

    ``differences`` is (n, A).
    """

    axes: tuple[str, ...]
    differences: Floats

    @property
    def blocks(self) -> Floats:
        """Whole blocks (B, 4, A); pairs beyond the last whole one are left out."""
        whole = len(self.differences) // BLOCK_PAIRS * BLOCK_PAIRS
        return self.differences[:whole].reshape(-1, BLOCK_PAIRS, len(self.axes))


def noise_of(slowness: Mapping[str, tuple[tuple[float, float], ...]]) -> Noise:
    """The differences between the processes of each pair."""
    names = tuple(slowness)
    both_An2 = np.array([slowness[name] for name in names], dtype=np.float64)
    return Noise(names, (both_An2[..., 0] - both_An2[..., 1]).T)


def draw(rng: np.random.Generator, blocks: Floats, runs: int, pairs: int) -> Floats:
    """The differences (R, pairs, A) of resampled runs."""
    count = math.ceil(pairs / BLOCK_PAIRS)
    chosen = blocks[rng.integers(0, len(blocks), (runs, count))]
    return chosen.reshape(runs, count * BLOCK_PAIRS, -1)[:, :pairs]


def redrawn(rng: np.random.Generator, differences_RnA: Floats) -> tuple[Floats, Floats]:
    """d_RnA and orders_Rn of these runs with a new draw of which process is the reference."""
    runs, pairs, _ = differences_RnA.shape
    drawn = orders(rng, runs, pairs)
    return drawn[..., None] * differences_RnA, drawn


def policy_rates(
    levers: Sequence[str], rules: Rules, noise: Noise, seed: int, draws: Draws = FULL
) -> PolicyRates:
    """How runs of equal arms end under a policy, with the interval of the false ones."""
    rng = np.random.default_rng(seed)
    pairs, blocks = rules.looks[-1], noise.blocks
    ends = run_all(rules, *redrawn(rng, draw(rng, blocks, draws.runs, pairs)))
    again = run_all(rules, *redrawn(rng, _of_resampled_calibrations(rng, blocks, pairs, draws)))
    count = Counter(ends.reasons.tolist())
    kinds = {"false": (WIN, *HARM), "wins": (WIN,)}
    rates = {}
    for name, reasons in kinds.items():
        shares = np.isin(again.reasons, reasons).reshape(draws.calibrations, -1).mean(axis=1)
        rates[name] = _with_interval(ends.count(*reasons), draws.runs, shares)
    return PolicyRates(
        levers=tuple(levers),
        **rates,
        ends={reason: number / draws.runs for reason, number in sorted(count.items())},
        mean_pairs=float(ends.pairs.mean()),
    )


def _of_resampled_calibrations(
    rng: np.random.Generator, blocks: Floats, pairs: int, draws: Draws
) -> Floats:
    """Runs drawn from resampled calibrations, those of one after those of the other."""
    B = len(blocks)
    again = [blocks[rng.integers(0, B, B)] for _ in range(draws.calibrations)]
    return np.concatenate([draw(rng, one, draws.runs_each, pairs) for one in again])


def _with_interval(count: int, runs: int, shares: Floats) -> Rate:
    """The rate with the wider of two intervals: drawing (binomial) and the choice of pairs."""
    low, high = np.quantile(shares, (0.025, 0.975))
    exact_low, exact_high = binomial_interval(count, runs)
    return Rate(
        rate=count / runs,
        lower=min(exact_low, float(low)),
        upper=max(exact_high, float(high)),
    )


def binomial_interval(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper & Pearson, Biometrika 26, 1934)."""
    tail = (1 - level) / 2
    lower = float(betaincinv(count, n - count + 1, tail)) if count else 0.0
    upper = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return lower, upper


def axis_noise(noise: Noise, looks: Sequence[int]) -> tuple[AxisNoise, ...]:
    """Noise and smallest visible effects of every axis."""
    return tuple(
        _noise_of(axis, noise.differences[:, a], looks) for a, axis in enumerate(noise.axes)
    )


def _noise_of(axis: str, differences: Floats, looks: Sequence[int]) -> AxisNoise:
    sd = float(differences.std(ddof=1))
    levels = zip(looks, nominal_ps(tuple(looks)), strict=True)
    return AxisNoise(
        axis=axis,
        sd=sd,
        position=-float(differences.mean()),
        lag_one=lag_one(differences - differences.mean()),
        visible=tuple(sd / math.sqrt(n) * float(stdtrit(n - 2, 1 - p / 2)) for n, p in levels),
        seen_at_80=smallest_seen(looks, sd) if sd > 0 else 0.0,
    )
