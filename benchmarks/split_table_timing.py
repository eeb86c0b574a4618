"""How a call of ``split_table.py`` is timed: caches, graphs, turns."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from levers.kernels.decode_attn import attention_by
from levers.kernels.split_heuristic import DecodeShape, upstream_splits
from levers.kernels.split_kv import PagedKV, SplitPlan, Workspace, decode_attention, plan_splits
from levers.kernels.split_kv_config import SplitConfig

KV_HEADS, DIM, BLOCK = 8, 128, 128
PAGE = 256
"""Slots of a page that every backend reads."""
LAYERS_BYTES = 2**27
"""Keys and values that a graph walks through: twice the 60 MB L2 cache of an H200."""
MOST_LAYERS = 64
FEWEST_CALLS = 20
REHEARSED_CALLS = 2
DISTRIBUTIONS = {"triton": "triton", "fa2": "flash-attn", "fa3": "tokenspeed-fa3", "torch": "torch"}
MODULE_HEAD = '''\
"""Split counts measured on a device (written by ``split_table.py --write``; torch-free).

Each row: query heads, tokens, batch, the count to take (0: the backend's own rule), and
microseconds a call with it, by the backend's own rule and of the fastest count. bf16, D = 128.
"""

from __future__ import annotations

from levers.kernels.tuned_splits_table import TunedRow, TunedTable

TABLES: tuple[TunedTable, ...] = ('''


@dataclass(frozen=True)
class Shape:
    """One shape of a call."""

    heads: int
    tokens: int
    batch: int

    @property
    def label(self) -> str:
        """As progress lines show it."""
        return f"{self.heads}/{KV_HEADS}, {self.tokens}, batch {self.batch}"

    @property
    def kv_blocks(self) -> int:
        """KV blocks of a sequence."""
        return -(-self.tokens // BLOCK)

    @property
    def bytes(self) -> int:
        """Keys and values of one call, in 16 bits."""
        return 2 * 2 * self.batch * self.tokens * KV_HEADS * DIM


def device(rehearse: bool) -> dict[str, Any]:
    """Where and with what the table is measured."""
    on_cuda = torch.cuda.is_available() and not rehearse
    sms = torch.cuda.get_device_properties(0).multi_processor_count if on_cuda else 48
    return {
        "device": torch.cuda.get_device_name() if on_cuda else "cpu",
        "sm_count": sms,
        "torch": torch.__version__,
        "day": datetime.now(UTC).date().isoformat(),
    }


def version(backend: str) -> str:
    """The version of a backend's package, or "" where it is not installed under that name."""
    try:
        return f"{DISTRIBUTIONS[backend]} {importlib.metadata.version(DISTRIBUTIONS[backend])}"
    except importlib.metadata.PackageNotFoundError:
        return DISTRIBUTIONS[backend]


def source(report: dict[str, Any], table: dict[str, Any]) -> str:
    """Where a table comes from, in words."""
    layout = f" {table['layout']}" if table["layout"] else ""
    what = f"{table['version']}{layout}, torch {report['torch']}"
    return f"{what}, {report['kv']}, {report['day']}"


def caches(shape: Shape, kv: str, rehearse: bool) -> list[PagedKV]:
    """One cache a layer, enough of them that L2 cannot hold them; pages in random order."""
    where = "cpu" if rehearse else "cuda"
    dtype = torch.float32 if rehearse else torch.bfloat16
    layers = 1 if rehearse else max(2, min(MOST_LAYERS, -(-LAYERS_BYTES // shape.bytes)))
    page = shape.tokens if kv == "contiguous" else (BLOCK if rehearse else PAGE)
    per_slot = -(-shape.tokens // page)
    lengths = torch.full((shape.batch,), shape.tokens, dtype=torch.int32, device=where)
    found = []
    for _ in range(layers):
        pages = shape.batch * per_slot
        order = torch.arange if per_slot == 1 else torch.randperm
        table = order(pages, device=where).view(shape.batch, per_slot).to(torch.int32)
        size = (pages, KV_HEADS, page, DIM)
        k, v = (torch.empty(size, device=where, dtype=dtype).normal_() for _ in "kv")
        found.append(PagedKV(k, v, table, lengths))
    return found


def launch_of(backend: str, layout: SplitConfig) -> Callable[..., int]:
    """The launch of a backend, our own kernel in the layout that is asked for."""
    if backend == "triton":
        return functools.partial(decode_attention, backend="triton", config=layout)
    return attention_by(backend)


def plan_of(backend: str, shape: Shape, count: int, sm_count: int) -> SplitPlan:
    """The plan of a count; of 0 that of the backend's own rule, in its own kernel where it can."""
    asked = DecodeShape(
        shape.batch, KV_HEADS, shape.tokens, BLOCK, sm_count, backend, query_heads=shape.heads
    )
    splits = count
    if count == 0 and backend in ("triton", "torch"):
        splits = upstream_splits(asked)
    return plan_splits(shape.tokens, BLOCK, splits)


def microseconds(
    backend: str,
    shape: Shape,
    counts: list[int],
    asked: argparse.Namespace,
    layout: SplitConfig,
) -> dict[int, float]:
    """The median time of a call by count."""
    layers = caches(shape, asked.kv, asked.rehearse)
    where, dtype = layers[0].k_PKSD.device, layers[0].k_PKSD.dtype
    q = torch.randn(shape.batch, shape.heads, DIM, device=where, dtype=dtype)
    out, most = torch.empty_like(q), max(shape.kv_blocks, 1)
    workspace = Workspace(most, shape.batch, shape.heads, DIM, where)
    launch = launch_of(backend, layout)
    sm_count = device(asked.rehearse)["sm_count"]
    calls = REHEARSED_CALLS if asked.rehearse else max(FEWEST_CALLS, len(layers))
    walked = [layers[number % len(layers)] for number in range(calls)]

    def walk(plan: SplitPlan) -> None:
        for kv in walked:
            launch(q, kv, plan, out, workspace)

    plans = {count: plan_of(backend, shape, count, sm_count) for count in counts}
    time_s = _on_host if asked.rehearse else _in_graph
    turns = {count: time_s(functools.partial(walk, plan), out) for count, plan in plans.items()}
    times: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(asked.repeats):
        order = counts[turn % len(counts) :] + counts[: turn % len(counts)]
        for count in order:
            times[count].append(turns[count]() * 1e6 / calls)
    return {count: round(statistics.median(found), 3) for count, found in times.items()}


def _on_host(work: Callable[[], None], out: Tensor) -> Callable[[], float]:
    """A rehearsal's seconds."""

    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    work()
    if not bool(torch.isfinite(out).all()):
        raise FloatingPointError("the call left an output that is not finite")
    return once


def _in_graph(work: Callable[[], None], out: Tensor) -> Callable[[], float]:
    """Seconds of a replay by events on the device, after one that is not timed."""
    out.fill_(float("nan"))
    work()
    torch.cuda.synchronize()
    if not bool(torch.isfinite(out).all()):
        raise FloatingPointError("the call left an output that is not finite")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()

    def once() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    return once
