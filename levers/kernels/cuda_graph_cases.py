"""The op cases of the replayed step: a gated MLP with its residual add, launched and replayed.

Shape suffixes: N rows, C channels, I intermediate size, J = 2I. A graph computes what was captured,
so the cases look at what could differ: that a replay reads the inputs of the moment, writes all of
its outputs, and repeats the bits of the launches. On a CPU the same operations run on the static
buffers that a capture would use. Nothing is allocated between the operations, so that they can also
be captured under a sanitizer, which wants PyTorch's caching allocator off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from levers.base import OpCase
from levers.kernels.gemv_values import ForwardCase, Tensors, word

ROWS = (1, 2, 3, 7, 16, 31, 32)
"""Slots of a step."""
HIDDEN, WIDE = 128, 512
"""Channels of the shipped model and its MLP."""
WARM_UPS = 2
"""Launches before a capture, as in the engine: libraries set themselves up and take memory."""
CAPTURING = threading.Lock()
"""One capture at a time in a process, of whatever work: PyTorch waits for the whole device before
each, and a device on which another stream is being captured cannot be waited for (CUDA C++
Programming Guide, Prohibited and Unhandled Operations); the error ends that capture, too."""


class Room(NamedTuple):
    """Where the operations leave their results."""

    wide_NJ: Tensor
    act_NI: Tensor
    out_NC: Tensor


def room_for(x_NC: Tensor) -> Room:
    """Fresh buffers."""
    rows = x_NC.shape[0]
    return Room(x_NC.new_empty(rows, 2 * WIDE), x_NC.new_empty(rows, WIDE), torch.empty_like(x_NC))


def run(tensors: Tensors, room: Room) -> Tensors:
    """``x + down(silu(gate) * up)``, operation by operation, each rounded."""
    x_NC, gate_up_JC, down_CI = tensors
    torch.mm(x_NC, gate_up_JC.T, out=room.wide_NJ)
    gate_NI, up_NI = room.wide_NJ.chunk(2, dim=-1)
    torch.sigmoid(gate_NI, out=room.act_NI)
    room.act_NI.mul_(gate_NI).mul_(up_NI)
    torch.mm(room.act_NI, down_CI.T, out=room.out_NC)
    room.out_NC.add_(x_NC)
    return (room.out_NC,)


def launched(tensors: Tensors) -> Tensors:
    """The reference: every operation is launched."""
    return run(tensors, room_for(tensors[0]))


class Replayed:
    """The candidate: captured at the first call of a thread, replayed at each.

    Requests in flight have buffers of their own, as engines do.
    """

    def __init__(self) -> None:
        self._own = threading.local()

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
        work = partial(run, buffers, room_for(buffers[0]))
        if not buffers[0].is_cuda:
            return work
        with CAPTURING:
            return captured(work)


@dataclass(frozen=True, slots=True)
class Replay:
    """A captured graph, what it was captured from (whose buffers it uses), and its results."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], Tensors]
    results: Tensors

    def __call__(self) -> Tensors:
        """Run the graph; the results are the same tensors each time."""
        self.graph.replay()
        return self.results


def captured(work: Callable[[], Tensors]) -> Callable[[], Tensors]:
    """A function that replays what ``work`` launched, and returns the tensors that it returned.

    The stream that is captured is warmed up itself, so that its work spaces are there. A graph owns
    no buffer that was allocated before its capture, so the function keeps ``work`` alive.
    """
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        results = work()
    torch.cuda.current_stream().wait_stream(stream)
    return Replay(graph, work, results)


def _outlier(tensors: Tensors) -> None:
    """One channel is a thousand times the others."""
    tensors[0][:, 5] = 1e3


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    on_cuda = torch.device(device).type == "cuda"
    dtypes = (torch.bfloat16, torch.float16) if on_cuda else (torch.float32, torch.bfloat16)
    scales = (1.0, HIDDEN**-0.5, WIDE**-0.5)
    make = partial(ForwardCase, scales=scales, original=launched, device=device)
    cases = [
        make(shapes=_shapes(rows), dtype=dtypes[0], fused=Replayed()).named(
            f"{rows} x {HIDDEN}, {word(dtypes[0])}"
        )
        for rows in ROWS
    ]
    other = make(shapes=_shapes(7), dtype=dtypes[1], fused=Replayed())
    large = make(shapes=_shapes(5), dtype=dtypes[0], fused=Replayed(), fill=_outlier)
    return (
        *cases,
        other.named(f"7 x {HIDDEN}, {word(dtypes[1])}"),
        large.named(f"outlier, {word(dtypes[0])}"),
    )


def _shapes(rows: int) -> tuple[tuple[int, ...], ...]:
    return (rows, HIDDEN), (2 * WIDE, HIDDEN), (HIDDEN, WIDE)
