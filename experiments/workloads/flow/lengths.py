"""How long the samples of a batch are: seeded profiles, known before anything runs.

The step's cost and the scatter-add's error depend on the actual lengths (on their squares, and on
the longest one), so lengths belong to the scope of a verdict and not to the seed of a run.
"""

from __future__ import annotations

import numpy as np

from levers.errors import BadParameter

PROFILES = ("lognormal", "uniform", "skewed", "measured")

DENSE = "dense"
"""The profile of a workload whose samples all fill their grid; not one to choose."""

CAP_TOKENS = 8192
"""Upstream's cap on the active voxels of one sample at 512 (a 32^3 latent grid)."""

MEASURED_TOKENS = (5601, 1863, 601, 3125, 1159, 960, 2830, 3673)
"""A batch of the 1.3 B step as measured on an H200: 19,812 tokens in 8 samples."""

SIGMA = 0.6
"""Spread of the log of the lengths. Assumed: the public figures are a median of 2222, a cap of 8192
and a mean of about 2.4 K."""

SHORTEST_SHARE = 200 / CAP_TOKENS
OTHERS_SHARE = 1000 / CAP_TOKENS
MEASURED_MEDIAN = 2222


def step_lengths(
    profile: str, batch: int, accumulate: int, tokens: int, cap: int, seed: int
) -> tuple[int, ...]:
    """The token counts of all samples of a step, ``accumulate`` micro-batches of ``batch``.

    A drawn profile is drawn on; each micro-batch of the others is the same again.

    Raises:
        BadParameter: as :func:`sample_lengths`.
    """
    if profile == "lognormal":
        return sample_lengths(profile, batch * accumulate, tokens, cap, seed)
    return sample_lengths(profile, batch, tokens, cap, seed) * accumulate


def sample_lengths(profile: str, batch: int, tokens: int, cap: int, seed: int) -> tuple[int, ...]:
    """The token counts of a batch.

    Args:
        profile: ``lognormal`` around ``tokens``, ``uniform`` (all ``tokens``), ``skewed`` (one
            sample at the cap, the others at an eighth of it) or ``measured`` (the fixed batch,
            scaled from a median of 2222 to ``tokens``).
        batch: number of samples.
        tokens: median of the profile.
        cap: no sample is longer.
        seed: of the lognormal draw.

    Raises:
        BadParameter: unknown profile, or more samples than the measured batch holds.
    """
    if profile == "lognormal":
        drawn = np.random.default_rng(seed).lognormal(np.log(tokens), SIGMA, batch)
        shortest = max(1, round(SHORTEST_SHARE * cap))
        return tuple(int(n) for n in np.clip(np.rint(drawn), shortest, cap))
    if profile in ("uniform", DENSE):
        return (min(tokens, cap),) * batch
    if profile == "skewed":
        return (cap,) + (max(1, round(OTHERS_SHARE * cap)),) * (batch - 1)
    if profile == "measured":
        return _measured(batch, tokens, cap)
    raise BadParameter(f"no lengths profile {profile!r}", cure=f"use one of {', '.join(PROFILES)}")


def _measured(batch: int, tokens: int, cap: int) -> tuple[int, ...]:
    if batch > len(MEASURED_TOKENS):
        raise BadParameter(
            f"profile 'measured' holds {len(MEASURED_TOKENS)} samples, not {batch}",
            cure="use --set bs=8 or another profile",
        )
    scale = tokens / MEASURED_MEDIAN
    return tuple(min(cap, max(1, round(scale * n))) for n in MEASURED_TOKENS[:batch])
