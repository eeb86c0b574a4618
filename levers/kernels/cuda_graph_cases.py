"""The op cases of the replayed step: a gated MLP with its norm, launched and replayed.

A graph computes what was captured, so the cases look at what could differ: that a replay reads the
inputs of the moment, writes all of its outputs, and repeats the bits of the launches. On a CPU the
same operations run on the static buffers that a capture would use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.nn import functional

from levers.base import OpCase
from levers.kernels.gemv_values import ForwardCase, Tensors, word

EPS = 1e-6
ROWS = (1, 2, 3, 7, 16, 31, 32)
"""Slots of a step."""
HIDDEN, WIDE = 128, 512
"""Channels of the shipped model and its MLP."""
WARM_UPS = 2
"""Launches on a side stream before a capture, as in the engine: libraries set themselves up."""


def original(tensors: Tensors) -> Tensors:
    """``x + down(silu(gate) * up)`` of the normed rows, operation by operation."""
    x_NC, norm_C, gate_up_JC, down_CI = tensors
    normed_NC = functional.rms_norm(x_NC, (x_NC.shape[-1],), norm_C, EPS)
    gate_NI, up_NI = functional.linear(normed_NC, gate_up_JC).chunk(2, dim=-1)
    return (x_NC + functional.linear(functional.silu(gate_NI) * up_NI, down_CI),)


class Replayed:
    """The same on static buffers: captured at the first call of a thread, replayed at each.

    Requests in flight have buffers of their own, as engines do; captures do not overlap.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._capturing = threading.Lock()

    def __call__(self, tensors: Tensors) -> Tensors:
        """Copy the inputs in, run, and hand out the static results."""
        if not hasattr(self._own, "buffers"):
            self._own.buffers = tuple(one.clone() for one in tensors)
            self._own.run = self._made(self._own.buffers)
        for buffer, one in zip(self._own.buffers, tensors, strict=True):
            buffer.copy_(one)
        results: Tensors = self._own.run()
        return results

    def _made(self, buffers: Tensors) -> Callable[[], Tensors]:
        if not buffers[0].is_cuda:
            return lambda: original(buffers)
        with self._capturing:
            return captured(partial(original, buffers))


def captured(work: Callable[[], Tensors]) -> Callable[[], Tensors]:
    """A function that replays what ``work`` launched, and returns the tensors that it returned."""
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = work()

    def replay() -> Tensors:
        graph.replay()
        return results

    return replay


def _outlier(tensors: Tensors) -> None:
    """One channel is a thousand times the others."""
    tensors[0][:, 5] = 1e3


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    on_cuda = torch.device(device).type == "cuda"
    dtypes = (torch.bfloat16, torch.float16) if on_cuda else (torch.float32, torch.bfloat16)
    scales = (1.0, None, HIDDEN**-0.5, WIDE**-0.5)
    make = partial(ForwardCase, scales=scales, original=original, device=device)
    cases = [
        make(shapes=_shapes(rows), dtype=dtypes[0], fused=Replayed()).named(
            f"{rows} x {HIDDEN}, {word(dtypes[0])}"
        )
        for rows in ROWS
    ]
    other = make(shapes=_shapes(7), dtype=dtypes[1], fused=Replayed())
    wild = make(shapes=_shapes(5), dtype=dtypes[0], fused=Replayed(), fill=_outlier)
    return (
        *cases,
        other.named(f"7 x {HIDDEN}, {word(dtypes[1])}"),
        wild.named(f"outlier, {word(dtypes[0])}"),
    )


def _shapes(rows: int) -> tuple[tuple[int, ...], ...]:
    return (rows, HIDDEN), (HIDDEN,), (2 * WIDE, HIDDEN), (HIDDEN, WIDE)
