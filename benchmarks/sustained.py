"""The dense step's own products and attentions, each in a burst and for 1.2 s without a pause.

    python -m benchmarks.sustained --device cuda:0 --out sustained.json

Whether a step is limited by power shows here. A burst of 20 ms follows an idle pause, on a device
that is still cool, and is over before the limit is felt; the same call for 1.2 s is not. In this
order:

1. bursts: every product (forward with bias, the input's gradient, the weight's in fp32) and every
   attention (self and cross, each way) of one block at batch 8.
2. sustained: the same calls, with the rate of each twentieth of a second.
3. zeros: one product on zeros, sustained. The instructions are the same, and the multipliers take
   nearly no power: where zeros keep the burst's rate and random values do not, power is the limit.
4. block: all of them in the step's order, as often as fits, beside the rate of their bursts.

Clock, power, temperature and throttle reasons stand beside each. All takes half a minute, and what
FlashAttention-4 compiles for. TFLOP/s count a backward of attention as twice its forward, as the
step's utilisation does; its kernels do 2.5 times the work. No verdict; each rate is all work over
all time.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.device_watch import Unwatched, Watch, watching
from benchmarks.device_watch import line as device_line
from experiments.environment import find_device
from levers.kernels.attn_backend import PackedAttention
from levers.kernels.attn_backend_needs import missing_packages
from levers.kernels.linear_grads import product

Work = Callable[[], object]

PERIOD_S = 0.02
SLICE_S = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """One block of the dense flow.

    Attributes:
        samples, tokens, cond: of the batch, of a sample, and of its condition.
        channels, heads, mlp: of the model.
        burst_s, sustained_s: how long each runs.
        pause_s, gap_s: how long nothing runs before each.
    """

    samples: int = 8
    tokens: int = 4096
    cond: int = 1029
    channels: int = 1536
    heads: int = 12
    mlp: int = 8192
    burst_s: float = 0.02
    sustained_s: float = 1.2
    pause_s: float = 0.25
    gap_s: float = 0.02

    @property
    def rows(self) -> int:
        return self.samples * self.tokens


REHEARSAL = Size(2, 16, 5, 32, 2, 48, burst_s=0.002, sustained_s=0.02, pause_s=0.001)


@dataclass(frozen=True)
class Layout:
    """Samples of one length, as the attention's site sees them."""

    lengths: tuple[int, ...]
    cu_seqlens: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))


@dataclass(frozen=True)
class Call:
    """One operation of the step: what it is called, its FLOP, and the work itself."""

    name: str
    flop: float
    work: Work


class Drawn:
    """Random operands like a step's, bf16, all from one generator."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._draw = torch.Generator(device).manual_seed(0)

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        options: dict[str, Any] = {"generator": self._draw, "device": self._device}
        return (scale * torch.randn(shape, dtype=torch.bfloat16, **options)).detach()


def products(size: Size, drawn: Drawn) -> list[Call]:
    """The four Linears of the stream, in their three forms."""
    c = size.channels
    shapes = {"qkv": (c, 3 * c), "out": (c, c), "up": (c, size.mlp), "down": (size.mlp, c)}
    calls = []
    for name, (inputs, outputs) in shapes.items():
        x, grad = drawn(size.rows, inputs), drawn(size.rows, outputs)
        weight, bias = drawn(outputs, inputs, scale=inputs**-0.5), drawn(outputs)
        flop = 2.0 * size.rows * inputs * outputs
        forms: dict[str, Work] = {
            "forward": functools.partial(F.linear, x, weight, bias),
            "input gradient": functools.partial(torch.mm, grad, weight),
            "weight gradient": functools.partial(product, grad.t(), x, torch.float32),
        }
        calls += [Call(f"{name} {form}", flop, work) for form, work in forms.items()]
    return calls


def on_zeros(size: Size, drawn: Drawn) -> Call:
    """The MLP's first Linear with nothing in it."""
    x, weight = (
        drawn(size.rows, size.channels, scale=0.0),
        drawn(size.mlp, size.channels, scale=0.0),
    )
    flop = 2.0 * size.rows * size.channels * size.mlp
    return Call("up forward on zeros", flop, functools.partial(torch.mm, x, weight.t()))


def attention_backend(device: str) -> str:
    """FlashAttention-4 where it is installed, else cuDNN; PyTorch's own choice on a CPU."""
    if not device.startswith("cuda"):
        return "torch"
    return "cudnn" if missing_packages("fa4") else "fa4"


def attention(size: Size, backend: str) -> Callable[..., Tensor]:
    """Attention of ``[N, H, D]``, differentiable; keys may be fewer than queries."""
    if backend != "torch":
        return PackedAttention(backend)

    def by_torch(q: Tensor, k: Tensor, v: Tensor, *_: Layout) -> Tensor:
        parts = (one.unflatten(0, (size.samples, -1)).transpose(1, 2) for one in (q, k, v))
        return F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(0, 1)

    return by_torch


def attentions(size: Size, drawn: Drawn, backend: str) -> list[Call]:
    """Self and cross attention, each way."""
    run, head_dim = attention(size, backend), size.channels // size.heads
    queries, calls = Layout((size.tokens,) * size.samples), []
    for name, keys in (("self", size.tokens), ("cross", size.cond)):
        cut = Layout((keys,) * size.samples)
        q, grad = (drawn(size.rows, size.heads, head_dim) for _ in range(2))
        k, v = (drawn(size.samples * keys, size.heads, head_dim) for _ in range(2))
        leaves = tuple(one.requires_grad_() for one in (q, k, v))
        out = run(*leaves, queries, cut)
        back = functools.partial(torch.autograd.grad, out, leaves, grad, retain_graph=True)
        flop = 4.0 * size.rows * keys * size.channels
        forward = functools.partial(run, *(one.detach() for one in leaves), queries, cut)
        calls += [
            Call(f"{name} attention forward", flop, forward),
            Call(f"{name} attention backward", 2 * flop, back),
        ]
    return calls


class Clock:
    """Runs work for so long; its rate is by events on a GPU, by the host's clock elsewhere."""

    def __init__(self, device: str, watch: Watch | Unwatched) -> None:
        self.device, self.watch = device, watch
        self.on_cuda = device.startswith("cuda")

    def wait(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize()

    def stamp(self) -> Any:
        """A moment in the stream of work."""
        if not self.on_cuda:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last)) / 1e3 if self.on_cuda else float(last - first)

    def once_s(self, work: Work) -> float:
        """About how long one call takes, of three after a first that may compile."""
        work()
        self.wait()
        first = self.stamp()
        for _ in range(3):
            work()
        last = self.stamp()
        self.wait()
        return self.between_s(first, last) / 3

    def run(self, call: Call, seconds: float, one_s: float, lead: int = 2) -> dict[str, Any]:
        """A row: rate over all, by slice, and the device meanwhile; ``lead`` calls go before."""
        count = max(1, round(seconds / one_s))
        each = max(1, round(SLICE_S / one_s))
        self.wait()
        for _ in range(lead):
            call.work()
        began, stamps, marks = time.monotonic(), [self.stamp()], [0]
        for index in range(1, count + 1):
            call.work()
            if index % each == 0 or index == count:
                stamps.append(self.stamp())
                marks.append(index)
        self.wait()
        ended, total = time.monotonic(), self.between_s(stamps[0], stamps[-1])
        slices = [
            call.flop * (marks[i + 1] - marks[i]) / self.between_s(*stamps[i : i + 2]) / 1e12
            for i in range(len(marks) - 1)
            if self.between_s(*stamps[i : i + 2]) > 0
        ]
        return {
            "what": call.name,
            "calls": count,
            "ms": 1e3 * total / count,
            "tflop_s": call.flop * count / total / 1e12,
            "slices_tflop_s": slices,
            "device": self.watch.during(began, ended),
        }


def rows(size: Size, device: str, clock: Clock, backend: str) -> list[dict[str, Any]]:
    """All rows of the table, each printed as it is known."""
    drawn = Drawn(device)
    found: list[dict[str, Any]] = []

    def add(part: str, call: Call, **more: float) -> dict[str, Any]:
        time.sleep(size.pause_s if part == "burst" else size.gap_s)
        seconds = size.burst_s if part == "burst" else size.sustained_s
        row = {"part": part, **clock.run(call, seconds, times_s[call.name]), **more}
        if "burst_tflop_s" in row:
            row["of_burst"] = row["tflop_s"] / row["burst_tflop_s"]
        print(shown(row), flush=True)
        found.append(row)
        return row

    calls = [*products(size, drawn), *attentions(size, drawn, backend)]
    zeros, whole = on_zeros(size, drawn), block(calls)
    times_s = {call.name: clock.once_s(call.work) for call in (*calls, zeros, whole)}
    bursts = {call.name: add("burst", call) for call in calls}
    for call in calls:
        add("sustained", call, burst_tflop_s=bursts[call.name]["tflop_s"])
    add("zeros", zeros, burst_tflop_s=bursts["up forward"]["tflop_s"])
    burst_s = math.fsum(row["ms"] for row in bursts.values()) / 1e3
    add("block", whole, burst_tflop_s=whole.flop / burst_s / 1e12)
    return found


def block(calls: Sequence[Call]) -> Call:
    """The forwards in their order, then the backwards from the end."""
    forward = [call.work for call in calls if call.name.endswith("forward")]
    backward = [call.work for call in reversed(calls) if not call.name.endswith("forward")]

    def work() -> None:
        for one in (*forward, *backward):
            one()

    return Call("block", math.fsum(call.flop for call in calls), work)


def shown(row: dict[str, Any]) -> str:
    """What a person reads of a row."""
    text = (
        f"{row['part']:10}{row['what']:26}{1e3 * row['ms']:9.0f} us {row['tflop_s']:8.1f} TFLOP/s"
    )
    if "of_burst" in row:
        text += f" ({row['of_burst']:.1%} of its burst)"
    return f"{text}  {device_line(row['device'])}"


def run(device: str, *, rehearse: bool, out: Path | None) -> dict[str, Any]:
    """Measure all and store it."""
    size, backend = REHEARSAL if rehearse else Size(), attention_backend(device)
    found = find_device(device)
    began = time.monotonic()
    with watching(found, PERIOD_S) as watch:
        table = rows(size, device, Clock(device, watch), backend)
    stored = {
        "device": found.facts.kind,
        "attention": backend,
        "rehearsal": rehearse,
        "seconds": time.monotonic() - began,
        "rows": table,
    }
    if out:
        out.write_text(json.dumps(stored, indent=1))
    return stored


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on any device")
    parser.add_argument("--out", type=Path, help="JSON, written at the end")
    asked = parser.parse_args()
    stored = run(asked.device, rehearse=asked.rehearse, out=asked.out)
    print(f"{stored['seconds']:.0f} s, attention by {stored['attention']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
