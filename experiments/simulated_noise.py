"""Noise of simulated runs: what the two processes of a pair show where the arms are equal.

A model gives the log slowness of each process: ``x_Rn2A``, the first and the second process of
each pair in time order. Which of them is the reference is the plan's draw, so that a position
effect or a ramp falls on the arms as it does in a real run. ``sd`` is the noise of
d = slowness(ref) - slowness(cand) that independent processes give; each has sd / sqrt(2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from experiments.plan import BLOCK_PAIRS

Floats = NDArray[np.float64]
Model = Callable[[np.random.Generator, int, int, int, float], Floats]
"""(generator, runs, pairs, axes, sd) -> x_Rn2A."""

POSITION = 0.5
"""How much slower a pair's second process is, in units of sd (as seen on a shared CPU)."""

RAMP = 20.0
"""Drift over the whole run, in units of sd: a machine that heats up."""

SLOW = 5.0
"""A slow state of the machine, in units of sd."""

THROTTLED = 10.0
"""A throttling episode, in units of sd."""


def orders(rng: np.random.Generator, runs: int, pairs: int) -> Floats:
    """Random permuted blocks, two pairs of four with the reference first, as the plan has them."""
    blocks = math.ceil(pairs / BLOCK_PAIRS)
    ranks = rng.random((runs, blocks, BLOCK_PAIRS)).argsort(axis=2)
    drawn = np.where(ranks < BLOCK_PAIRS // 2, 1.0, -1.0)
    return drawn.reshape(runs, -1)[:, :pairs]


def log_ratios(x_Rn2A: Floats, orders_Rn: Floats) -> Floats:
    """Per pair, d: slowness of the reference minus that of the candidate."""
    d: Floats = orders_Rn[..., None] * (x_Rn2A[:, :, 0] - x_Rn2A[:, :, 1])
    return d


def gauss(rng: np.random.Generator, runs: int, pairs: int, axes: int, sd: float) -> Floats:
    """Independent normal processes."""
    return rng.normal(0.0, sd / math.sqrt(2), (runs, pairs, 2, axes))


def heavy(rng: np.random.Generator, runs: int, pairs: int, axes: int, sd: float) -> Floats:
    """Student's t with three degrees of freedom, scaled to the same standard deviation."""
    scale = sd / math.sqrt(2) / math.sqrt(3)
    return scale * rng.standard_t(3, (runs, pairs, 2, axes))


def position(rng: np.random.Generator, runs: int, pairs: int, axes: int, sd: float) -> Floats:
    """The second process of each pair is slower."""
    x = gauss(rng, runs, pairs, axes, sd)
    x[:, :, 1] += POSITION * sd
    return x


def ramp(rng: np.random.Generator, runs: int, pairs: int, axes: int, sd: float) -> Floats:
    """Everything becomes slower as the run goes on."""
    x = gauss(rng, runs, pairs, axes, sd)
    drift = np.linspace(0.0, RAMP * sd, 2 * pairs).reshape(pairs, 2)
    return x + drift[None, :, :, None]


def slow_states(rng: np.random.Generator, runs: int, pairs: int, axes: int, sd: float) -> Floats:
    """The machine has a slow state that both processes of a pair share; it lasts five pairs."""
    x = gauss(rng, runs, pairs, axes, sd)
    changes = rng.random((runs, pairs)) < 0.2
    state = (np.cumsum(changes, axis=1) + rng.integers(0, 2, (runs, 1))) % 2
    return x + SLOW * sd * state[:, :, None, None]


def throttling(rng: np.random.Generator, runs: int, pairs: int, axes: int, sd: float) -> Floats:
    """Episodes of about six processes, in one run of two, that may begin within a pair."""
    x = gauss(rng, runs, pairs, axes, sd)
    start = rng.integers(0, 2 * pairs, (runs, 1))
    length = rng.geometric(1 / 6, (runs, 1)) * rng.integers(0, 2, (runs, 1))
    place = np.arange(2 * pairs)[None, :]
    hot = (place >= start) & (place < start + length)
    return x + THROTTLED * sd * hot.reshape(runs, pairs, 2)[..., None]


MODELS: dict[str, Model] = {
    "gauss": gauss,
    "heavy tails (t, 3 df)": heavy,
    "position effect": position,
    "ramp": ramp,
    "shared slow states": slow_states,
    "throttling episodes": throttling,
}
"""The noise under which the error rates hold."""


def correlated_d(
    rng: np.random.Generator, runs: int, pairs: int, axes: int, sd: float, lag_one: float
) -> Floats:
    """Draws of d with lag-1 correlation: each arm carries a state of its own from pair to pair.

    This is what carry-over within an arm makes (a cache or a layout that its next process finds),
    and random order does not cure it. Returns d_RnA, not the processes.
    """
    d = rng.normal(0.0, 1.0, (runs, pairs, axes))
    for i in range(1, pairs):
        d[:, i] = lag_one * d[:, i - 1] + math.sqrt(1 - lag_one**2) * d[:, i]
    return sd * d
