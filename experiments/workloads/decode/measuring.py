"""The timed work of one sample: prefills one after another, then decode at each concurrency."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.metrics import percentile, tokens_per_second, ttft_ms
from experiments.workloads.decode.engine import DecodeEngine
from experiments.workloads.decode.names import rate_axis

SETTLE = 1
"""Untimed requests or steps at the beginning of a stretch: the other process of the pair may have
had the caches meanwhile."""


def time_prefills(
    engine: DecodeEngine, requests: Sequence[tuple[int, Sequence[int]]]
) -> list[float]:
    """TTFT of requests ``(slot, prompt)``, in ms: each arrives when the one before has its token.

    In the engine that decodes, a prompt is the beginning of the slot's own: what the slot's cache
    holds is overwritten with the same keys and values, so that decoding can go on from it. The
    first token is read by the host.
    """
    times = []
    for slot, prompt in requests[:SETTLE]:
        engine.prefill(slot, prompt)
    for slot, prompt in requests:
        arrival = time.perf_counter()
        engine.prefill(slot, prompt)
        times.append(ttft_ms(arrival, time.perf_counter()))
    return times


class Decoded(NamedTuple):
    """A stretch of timed steps.

    Attributes:
        gaps_s: seconds between the tokens of all slots.
        first: what the first timed step gave each slot.
    """

    gaps_s: list[float]
    first: tuple[int, ...]


def time_decode(
    engine: DecodeEngine,
    step: Callable[[], Tensor],
    starts: Sequence[tuple[int, int]],
    steps: int,
) -> Decoded:
    """All slots, decoded ``steps`` times from filled caches.

    Args:
        engine: with the caches of the slots filled.
        step: one decode step of ``len(starts)`` slots.
        starts: first token and position of each slot.
        steps: decode steps; every stream goes on, whatever its tokens are.
    """
    count = len(starts)
    engine.tokens_B[:count] = torch.tensor([s[0] for s in starts]).to(engine.tokens_B.device)
    engine.positions_B[:count] = torch.tensor([s[1] for s in starts]).to(engine.tokens_B.device)
    gaps: list[float] = []
    given: list[list[int]] = []
    for _ in range(SETTLE):
        step().tolist()
    last = time.perf_counter()
    for _ in range(steps):
        given.append(step().tolist())
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
    return Decoded(gaps, tuple(given[0][:count]) if given else ())


def axis_values(
    gaps_s: Mapping[int, Sequence[float]], ttft: Sequence[float], peak_bytes: int
) -> dict[str, float]:
    """The axes of a sample.

    Throughput is all tokens over all time. ITL is that of the largest concurrency: one step gives
    every stream its next token, so that a step's time is the gap of each stream.
    """
    values = {
        rate_axis(c): tokens_per_second(c * len(gaps), sum(gaps)) for c, gaps in gaps_s.items()
    }
    itl = [gap * 1e3 for gap in gaps_s[max(gaps_s)]]
    values |= {
        "decode/ttft_ms/p50": percentile(ttft, 50),
        "decode/ttft_ms/p95": percentile(ttft, 95),
        "decode/itl_ms/p50": percentile(itl, 50),
        "decode/itl_ms/p95": percentile(itl, 95),
        "memory/peak_bytes": float(peak_bytes),
    }
    return values


def peak_bytes(device: torch.device) -> int:
    """Peak bytes of device memory (CUDA), or of this process's resident memory (CPU)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
