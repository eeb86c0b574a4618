"""Raw times and counts to serving metrics: TTFT, ITL, TPOT, throughput, percentiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import betainc

SAMPLES_FOR_P95 = 20
"""One value in 20 lies above p95: with fewer there is none to estimate it from."""
SAMPLES_FOR_P99 = 100
"""One value in 100 lies above p99."""


def ttft_ms(arrival_s: float, first_token_s: float) -> float:
    """Time to first token: from the arrival of a request to its first token, in ms.

    Raises:
        ValueError: the token came before the request.
    """
    if first_token_s < arrival_s:
        raise ValueError(f"first token at {first_token_s} s, before the arrival at {arrival_s} s")
    return (first_token_s - arrival_s) * 1e3


def itl_ms(token_times_s: Sequence[float]) -> tuple[float, ...]:
    """Inter-token latencies: each gap between two tokens of one stream, in ms.

    Raises:
        ValueError: times that go backwards.
    """
    gaps = np.diff(np.asarray(token_times_s, dtype=np.float64))
    if (gaps < 0).any():
        raise ValueError("token times go backwards")
    return tuple((gaps * 1e3).tolist())


def tpot_ms(end_to_end_s: float, first_token_s: float, output_tokens: int) -> float:
    """Time per output token: (end to end - TTFT) / (output tokens - 1), in ms.

    Raises:
        ValueError: fewer than two output tokens, for which there is no gap.
    """
    if output_tokens < 2:
        raise ValueError(f"{output_tokens} output tokens have no time per output token")
    return (end_to_end_s - first_token_s) * 1e3 / (output_tokens - 1)


def tokens_per_second(tokens: int, seconds: float) -> float:
    """Throughput.

    Raises:
        ValueError: no time has passed.
    """
    if seconds <= 0:
        raise ValueError(f"{tokens} tokens in {seconds} s is no rate")
    return tokens / seconds


def percentile(values: Sequence[float], percent: float) -> float:
    """A percentile by the Harrell-Davis estimator: a weighted mean of all order statistics.

    Its sampling error in a tail is smaller than that of one or two order statistics (Harrell and
    Davis, Biometrika 69, 1982): what a guard on a p95 needs between short runs.

    Raises:
        ValueError: no values, a percentage outside 0..100, or fewer samples than a tail needs
            (20 for p95, 100 for p99).
    """
    if not len(values):
        raise ValueError("no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent} is outside 0..100")
    needed = _samples_for(percent)
    if len(values) < needed:
        raise ValueError(f"p{percent:g} needs {needed} samples; there are {len(values)}")
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    share, count = percent / 100, len(ordered)
    if share in (0.0, 1.0):
        return float(ordered[0 if share == 0.0 else -1])
    edges = np.arange(count + 1) / count
    weights = np.diff(betainc((count + 1) * share, (count + 1) * (1 - share), edges))
    return float(np.clip(weights @ ordered, ordered[0], ordered[-1]))


def tail(values: Sequence[float], percent: float) -> tuple[str, float]:
    """The percentile with its name, or ``("max", maximum)`` where there are too few samples.

    Raises:
        ValueError: no values.
    """
    if len(values) >= _samples_for(percent):
        return f"p{percent:g}", percentile(values, percent)
    if not len(values):
        raise ValueError("no values")
    return "max", float(np.max(np.asarray(values, dtype=np.float64)))


def _samples_for(percent: float) -> int:
    if percent >= 99:
        return SAMPLES_FOR_P99
    return SAMPLES_FOR_P95 if percent >= 95 else 1
