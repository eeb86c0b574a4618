"""The fused operations of the flow blocks alone: time and bytes against the original path.

    python benchmarks/flow_kernels.py [--device cuda:0] [--set size=xl ...] [--out FILE]

Each line is one operation at the workload's shapes, forward and backward, through the very site and
lever of the workload: the median of calls timed by CUDA events, with the L2 cache flushed before
each. Bytes are what the *fused* operation must move at least; their rate is held against what a
copy on the same kind of device reaches. This is a benchmark of operations and no verdict.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.arguments import assignment
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow import original
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.names import (
    AFFINE_NORM,
    BROADCAST,
    GATE_RESIDUAL,
    MLP_HIDDEN,
    MODULATE,
    QK_NORM_ROPE,
)
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.rope import phases
from experiments.workloads.flow.sites import Sites
from experiments.workloads.flow.workload import SLAT_FLOW
from levers import catalog
from levers.base import OFF, Site, engaged

COPY_BYTES_PER_S = 4.3e12
"""Device-to-device copy on an H200, read and write, as measured."""

FLUSH_BYTES = 256 << 20
"""More than four times an H200's 60 MB L2 cache."""

BF16 = torch.bfloat16
Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Operation:
    """One site's call: its leaves get gradients; bytes are those of the fused form."""

    label: str
    lever: str
    site: str
    arguments: Arguments
    forward_bytes: float
    backward_bytes: float


@dataclass(frozen=True)
class Line:
    """Median microseconds of both arms, one direction."""

    operation: str
    lever: str
    direction: str
    original_us: float
    fused_us: float
    bytes: float

    @property
    def ratio(self) -> float:
        return self.original_us / self.fused_us

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.fused_us / 1e3


class _BiasInEpilogue(torch.autograd.Function):
    """A Linear of which only the bias's gradient is left: the rows are its product already."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor) -> Tensor:
        ctx.dtype = bias.dtype
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        wanted = ctx.needs_input_grad[1]
        return grads[0], grads[0].sum(0).to(ctx.dtype) if wanted else None


def _product_done(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    del weight
    out: Tensor = _BiasInEpilogue.apply(x, bias)  # type: ignore[no-untyped-call]
    return out


def operations(config: FlowConfig, device: str) -> Iterator[Operation]:
    """Every fused operation of a block, at the config's lengths."""
    layout = PackedLayout.of(config.lengths, device)
    n, c, b = layout.tokens, config.channels, len(config.lengths)
    m = b * config.cond_tokens
    heads, dim = config.heads, config.head_dim

    def leaf(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype).requires_grad_()

    rows, wide = 2.0 * n * c, torch.float32
    yield Operation(
        "broadcast", "segment_sum_broadcast", BROADCAST, (leaf(b, c), layout), rows, rows
    )
    modulation = (leaf(n, c), leaf(b, c), leaf(b, c), layout)
    yield Operation("modulate", "fused_modulate", MODULATE, modulation, 2 * rows, 4 * rows)
    gated = (leaf(n, c), leaf(n, c), leaf(b, c), layout)
    yield Operation("gate", "fused_gate_residual", GATE_RESIDUAL, gated, 3 * rows, 3 * rows)
    affine = (leaf(n, c), leaf(c, dtype=wide), leaf(c, dtype=wide))
    yield Operation("affine norm", "fused_affine_norm", AFFINE_NORM, affine, 2 * rows, 4 * rows)
    gammas = (leaf(heads, dim, dtype=wide), leaf(heads, dim, dtype=wide))
    coords = torch.randint(0, 32, (n, 3), device=device)
    turn, turn_bytes = phases(coords, dim, wide), 4.0 * n * dim
    yield Operation(
        "qk norm, RoPE", "fused_qk_norm_rope", QK_NORM_ROPE,
        (None, leaf(n, 3, heads, dim), *gammas, turn), 4 * rows + turn_bytes, 8 * rows + turn_bytes,
    )  # fmt: skip
    keys, both = 2.0 * m * c, 2.0 * (n + m) * c
    yield Operation(
        "qk norm, cross", "fused_qk_norm_rope", QK_NORM_ROPE,
        (leaf(n, heads, dim), leaf(m, 2, heads, dim), *gammas, None), 2 * both, 3 * both + 2 * keys,
    )  # fmt: skip
    hidden, weight = 2.0 * n * config.mlp, torch.empty(0, device=device)
    arguments = (leaf(n, config.mlp), weight, leaf(config.mlp, dtype=wide))
    yield Operation("gelu", "fused_mlp_hidden", MLP_HIDDEN, arguments, 2 * hidden, 3 * hidden)


def site_of(operation: Operation, config: FlowConfig) -> Site:
    """The workload's own site with its original callable; the MLP's without its product."""
    sites = Sites(PRECISIONS[config.matmul], "sdpa").by_name
    if operation.site == MLP_HIDDEN:
        return Site(MLP_HIDDEN, original.MlpHidden(_product_done))
    return sites[operation.site]


@dataclass(frozen=True)
class Timer:
    """Microseconds of a call, from a cold cache."""

    device: torch.device
    repeats: int

    def median_us(self, call: Callable[[], object]) -> float:
        for _ in range(3):
            call()
        once = self._event_us if self.device.type == "cuda" else self._host_us
        flushed = FLUSH_BYTES if self.device.type == "cuda" else 1
        scratch = torch.empty(flushed, dtype=torch.uint8, device=self.device)
        return statistics.median(once(call, scratch) for _ in range(self.repeats))

    def _event_us(self, call: Callable[[], object], scratch: Tensor) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        # the device is still busy with these when the call's launches arrive
        for _ in range(4):
            scratch.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return 1e3 * float(start.elapsed_time(end))

    def _host_us(self, call: Callable[[], object], scratch: Tensor) -> float:
        scratch.zero_()
        start = time.perf_counter()
        call()
        return 1e6 * (time.perf_counter() - start)


def times_us(operation: Operation, site: Site, config: FlowConfig, timer: Timer) -> list[float]:
    """Forward and backward of what the site holds. Norms end with the cast of the next Linear."""
    precision = PRECISIONS[config.matmul]
    leaves = [a for a in operation.arguments if isinstance(a, Tensor) and a.requires_grad]

    def forward() -> tuple[Tensor, ...]:
        with precision.context(timer.device.type):
            found = site.launch(*operation.arguments)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(one.to(BF16) for one in found)

    outputs = forward()
    grads = [torch.randn_like(one) for one in outputs]

    def backward() -> object:
        return torch.autograd.grad(outputs, leaves, grads, retain_graph=True)

    return [timer.median_us(forward), timer.median_us(backward)]


def measured(operation: Operation, config: FlowConfig, timer: Timer) -> list[Line]:
    """Both directions of one operation, original and fused."""
    lever, site = catalog.get(operation.lever), site_of(operation, config)
    found = {}
    for setting in (OFF, "on"):
        with engaged(lever, {site.name: site}, setting):
            found[setting] = times_us(operation, site, config, timer)
    directions = (("forward", operation.forward_bytes), ("backward", operation.backward_bytes))
    return [
        Line(operation.label, operation.lever, name, before, after, count)
        for (name, count), before, after in zip(directions, found[OFF], found["on"], strict=True)
    ]


def run(device: str, requested: Mapping[str, str], repeats: int) -> dict[str, Any]:
    """All lines of one device."""
    torch.manual_seed(0)
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    defaults = {"size": "xl"} if device.startswith("cuda") else {"bs": "8"}
    parameters: Mapping[str, Scalar] = SLAT_FLOW.resolve(
        {**defaults, **requested}, DeviceFacts(device, kind, 0)
    )
    config = FlowConfig.of(parameters)
    if kind == "cpu":
        torch.set_num_threads(config.threads)
    timer = Timer(torch.device(device), repeats)
    lines = []
    for operation in operations(config, device):
        lines += measured(operation, config, timer)
    return {
        "device": kind,
        "torch": torch.__version__,
        "parameters": dict(parameters),
        "tokens": sum(config.lengths),
        "repeats": repeats,
        "lines": [{**asdict(x), "ratio": x.ratio, "gb_per_s": x.gb_per_s} for x in lines],
    }


def report(found: Mapping[str, Any]) -> str:
    """The lines as a table."""
    on_cuda = found["device"] != "cpu"
    table = [
        f"{found['device']}, torch {found['torch']}, {found['tokens']} tokens, "
        f"median of {found['repeats']} calls",
        f"{'operation':16} {'direction':9} {'original us':>12} {'fused us':>10} {'ratio':>7} "
        f"{'GB/s':>8}" + (f" {'of 4300':>8}" if on_cuda else ""),
    ]
    for x in found["lines"]:
        line = (
            f"{x['operation']:16} {x['direction']:9} {x['original_us']:12.1f} "
            f"{x['fused_us']:10.1f} {x['ratio']:6.2f}x {x['gb_per_s']:8.0f}"
        )
        share = f" {1e11 * x['gb_per_s'] / COPY_BYTES_PER_S:7.0f}%" if on_cuda else ""
        table.append(line + share)
    return "\n".join(table)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--set", action="append", type=assignment, default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    requested = dict(options.set)
    found = run(options.device, requested, options.repeats)
    print(report(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
