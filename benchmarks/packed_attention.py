"""Packed attention of the flow step: what the order of the samples gives, and what tiles do.

    OUT=/tmp/out python -m benchmarks.packed_attention [--device cuda:0] [--only order tiles]

In this order, each line printed and written to ``$OUT/packed_attention.json`` as it is known:

1. order: self- and cross-attention, forward and backward, by FlashAttention-4, with the samples as
   drawn, the longest first and the shortest first. Beside each the time that a schedule of its
   tiles in that order takes, relative to the drawn one, by counting alone.
2. tiles: the same calls, longest first, with other tiles than the package chooses; each compiles
   for seconds.

Times are medians of interleaved rounds on a device that has been put under load. On a CPU PyTorch's
own attention stands in, sample by sample and small. A line that fails says why, and the others go
on; a part of which every line fails ends the program with 1. This is a benchmark of operations and
no verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import heapq
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gemm_epilogue_report import Bench, Call, Report, device, file_in_out, host_us
from experiments.workloads.flow.lengths import MEASURED_TOKENS
from levers.kernels.attn_backend import Cut
from levers.kernels.cublaslt_tuning import device_us, put_under_load

HEADS, HEAD_DIM, COND_TOKENS = 12, 128, 2056
PROCESSORS = 132
"""Streaming multiprocessors of an H200, each at work on one tile at a time."""

FORWARD_TILES = ((128, 112), (128, 144), (128, 160), (128, 176))
BACKWARD_TILES = ((64, 128),)
"""Query and key rows of a tile beside the package's own, (128, 128) and (80, 128) for this head dim
(flash-attn-4 4.0.0b36, ``_tile_size_fwd_sm90`` and ``_tile_size_bwd_sm90``)."""

TILE_START = 2.0
"""What a tile takes before and after its loop, in turns of the loop (assumed)."""


@dataclass(frozen=True)
class Attention:
    """One attention over packed samples.

    Attributes:
        queries, keys: rows of each sample.
        flop: of the forward (the backward counts twice that, as the step's utilisation does).
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    head_dim: int

    @property
    def flop(self) -> float:
        pairs = sum(q * k for q, k in zip(self.queries, self.keys, strict=True))
        return 4.0 * pairs * self.heads * self.head_dim

    def cut(self, device: str) -> Cut:
        """As the kernels take it, packed."""
        offsets = [
            torch.tensor(lengths).cumsum(0).to(device, torch.int32)
            for lengths in (self.queries, self.keys)
        ]
        cu_q, cu_k = (F.pad(one, (1, 0)) for one in offsets)
        return Cut(self.queries, self.keys, cu_q, cu_k)

    def forward_tiles(self) -> list[float]:
        """Turns of the loop of each tile of 128 queries, in the order in which they are begun."""
        return _tiles(self.queries, self.keys, 128, 128, self.heads)

    def backward_tiles(self) -> list[float]:
        """The same of each tile of 128 keys, over 80 queries a turn."""
        return _tiles(self.keys, self.queries, 128, 80, self.heads)


def _tiles(
    rows: Sequence[int], others: Sequence[int], tile: int, turn: int, heads: int
) -> list[float]:
    return [
        -(-other // turn) + TILE_START
        for row, other in zip(rows, others, strict=True)
        for _ in range(-(-row // tile) * heads)
    ]


def schedule(tiles: Sequence[float], processors: int = PROCESSORS) -> float:
    """When the last tile ends if each is begun by the first processor that is free."""
    free = [0.0] * processors
    for tile in tiles:
        heapq.heapreplace(free, free[0] + tile)
    return max(free)


def orders(lengths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The samples' lengths in each order."""
    return {
        "as drawn": tuple(lengths),
        "longest first": tuple(sorted(lengths, reverse=True)),
        "shortest first": tuple(sorted(lengths)),
    }


def attentions(lengths: tuple[int, ...], cond: int, heads: int, dim: int) -> dict[str, Attention]:
    """Those of a block."""
    conditions = (cond,) * len(lengths)
    return {
        "self": Attention(lengths, lengths, heads, dim),
        "cross": Attention(lengths, conditions, heads, dim),
    }


def calls(bench: Bench, one: Attention) -> tuple[Call, Call]:
    """Forward and backward."""
    rows, other = sum(one.queries), sum(one.keys)
    shapes = ((rows, 0), (other, 1), (other, 2), (rows, 3))
    q, k, v, grad = (bench.drawn(n, one.heads, one.head_dim, seed=seed) for n, seed in shapes)
    if torch.device(bench.device).type != "cuda":
        return _plain(one, q, k, v, grad)
    from levers.kernels.attn_backend_fa4 import FA4

    cut = one.cut(bench.device)
    out, state = FA4.forward(q, k, v, cut)
    return (
        lambda: FA4.forward(q, k, v, cut),
        lambda: FA4.backward(grad, (q, k, v), out, state, cut),
    )


def _plain(one: Attention, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Call, Call]:
    """Sample by sample through PyTorch."""
    leaves = [x.float().requires_grad_() for x in (q, k, v)]

    def forward() -> Tensor:
        splits = (one.queries, one.keys, one.keys)
        parts = zip(*(x.split(n) for x, n in zip(leaves, splits, strict=True)), strict=True)
        found = [F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in p)) for p in parts]
        return torch.cat([x.transpose(0, 1) for x in found])

    def backward() -> object:
        return torch.autograd.grad(forward(), leaves, grad.float())

    return forward, backward


def order(bench: Bench, lengths: Sequence[int], cond: int, heads: int, dim: int) -> None:
    """Both attentions each way in all orders."""
    found = {name: attentions(one, cond, heads, dim) for name, one in orders(lengths).items()}
    for kind in ("self", "cross"):
        ones = {name: one[kind] for name, one in found.items()}
        bench.report.attempt("order", kind, "", functools.partial(_ordered, bench, kind, ones))


def _ordered(bench: Bench, kind: str, ones: Mapping[str, Attention]) -> None:
    """One attention each way in all orders."""
    ready = {name: calls(bench, one) for name, one in ones.items()}
    flop = ones["as drawn"].flop
    for index, (way, factor) in enumerate((("forward", 1), ("backward", 2))):
        arms = {name: both[index] for name, both in ready.items()}
        if torch.device(bench.device).type == "cuda":
            put_under_load(arms["as drawn"], bench.clock)
        bench.compare("order", f"{kind} {way}", arms, factor * flop, "as drawn")
        tiles = {name: tiles_of(one, way) for name, one in ones.items()}
        counted = {name: schedule(one) for name, one in tiles.items()}
        for name, end in counted.items():
            bench.report.add(
                "counted", f"{kind} {way}", name,
                gain=counted["as drawn"] / end,
                idle_share=1 - sum(tiles[name]) / PROCESSORS / end,
            )  # fmt: skip


def tiles_of(one: Attention, way: str) -> list[float]:
    """Of one direction."""
    return one.forward_tiles() if way == "forward" else one.backward_tiles()


def tiles(bench: Bench, lengths: Sequence[int], cond: int, heads: int, dim: int) -> None:
    """Other tiles than the package's own, longest first."""
    found = attentions(tuple(sorted(lengths, reverse=True)), cond, heads, dim)
    for kind, one in found.items():
        bench.report.attempt("tiles", kind, "", functools.partial(_tiled, bench, kind, one))


def _tiled(bench: Bench, kind: str, one: Attention) -> None:
    """One attention each way with other tiles."""
    base = calls(bench, one)
    for index, (way, tried, choose) in enumerate(
        (
            ("forward", FORWARD_TILES, "_tile_size_fwd_sm90"),
            ("backward", BACKWARD_TILES, "_tile_size_bwd_sm90"),
        )
    ):
        arms: dict[str, Call] = {"own": base[index]}
        for tile in tried:
            arms[f"{tile[0]} x {tile[1]}"] = functools.partial(_with, choose, tile, base[index])
        put_under_load(base[index], bench.clock)
        bench.compare("tiles", f"{kind} {way}", arms, (1 + index) * one.flop, "own")


def _with(choose: str, tile: tuple[int, int], call: Callable[[], object]) -> object:
    """The call with another tile than the package would choose."""
    with other_tile(choose, tile):
        return call()


@contextlib.contextmanager
def other_tile(choose: str, tile: tuple[int, int]) -> Iterator[None]:
    """Put another tile in the package's choice for capability 9."""
    from flash_attn.cute import interface

    own = getattr(interface, choose)

    def chosen(*arguments: object, **named: object) -> object:
        found = own(*arguments, **named)
        sizes = {"m_block_size": tile[0], "n_block_size": tile[1]}
        if hasattr(found, "dQ_swapAB"):
            sizes["dQ_swapAB"] = bool(tile[0] % 64)
        return dataclasses.replace(found, **sizes)

    setattr(interface, choose, chosen)
    try:
        yield
    finally:
        setattr(interface, choose, own)


PARTS = ("order", "tiles")


def run(device: str, out: Path | None, only: Sequence[str] = PARTS) -> Report:
    """The parts that are asked for, in turn."""
    on_cuda = torch.device(device).type == "cuda"
    kind = torch.cuda.get_device_name(device) if on_cuda else "cpu"
    head = {"device": kind, "torch": torch.__version__, "rehearsal": not on_cuda}
    bench = Bench(device, Report(out, head), device_us if on_cuda else host_us)
    shrink = 1 if on_cuda else 32
    lengths = [max(1, n // shrink) for n in MEASURED_TOKENS]
    sizes = (HEADS, HEAD_DIM) if on_cuda else (2, 16)
    cond = COND_TOKENS // shrink
    for name, part in (("order", order), ("tiles", tiles)):
        if name in only and (on_cuda or name != "tiles"):
            work = functools.partial(part, bench, lengths, cond, *sizes)
            bench.report.attempt(name, "", "", work)
    return bench.report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    usual = "cuda:0" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=device, default=usual)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART")
    options = parser.parse_args(arguments)
    on_cuda = torch.device(options.device).type == "cuda"
    if not on_cuda and "tiles" in (options.only or ()):
        parser.error("tiles need CUDA: leave them out, or give --device cuda:0")
    only = options.only or (PARTS if on_cuda else ("order",))
    report = run(options.device, file_in_out(parser, "packed_attention.json"), only)
    if not options.only and not on_cuda:
        print("tiles are left out: they need CUDA")
    return report.exit_code(only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
