"""The fused residual and norm against the kernels that it joins: microseconds and bytes a second.

    python -m benchmarks.residual_norm --device cuda:0 --out residual_norm.json

At the dense flow's size (8 x 4096 rows of 1536 channels), each of the three forms, forward and
backward: the kernels apart, the fused one as it ships, and the fused one under other cuts of the
rows. Times are of the launchers alone, twenty calls back to back between two events, the median of
rounds that take turns. The bytes are those that the operation must move; a copy stands beside them.
No autograd, no verdict.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from levers.kernels import gate_residual_triton as gates
from levers.kernels import row_norm_triton as norms
from levers.kernels.residual_norm_cases import FORMS, Form
from levers.kernels.residual_norm_launch import (
    BACKWARD,
    FORWARD,
    Cut,
    Rows,
    backward_triton,
    forward_triton,
)
from levers.kernels.row_norm import EPS

Call = Callable[[], object]

FORWARD_CUTS = tuple(Cut(*one) for one in itertools.product((4, 8, 16), (256, 512, 1024)))
BACKWARD_CUTS = tuple(Cut(*one) for one in itertools.product((8, 16, 32, 64), (128, 256, 512)))


@dataclass(frozen=True, slots=True)
class Size:
    """Rows and how they are timed."""

    samples: int = 8
    tokens: int = 4096
    channels: int = 1536
    calls: int = 20
    rounds: int = 5

    @property
    def rows_bytes(self) -> float:
        """Of one pass over the rows in bf16."""
        return 2.0 * self.samples * self.tokens * self.channels


REHEARSAL = Size(2, 3, 16, calls=1, rounds=1)


class Operands:
    """One form's tensors, with what a forward leaves for the backward."""

    def __init__(self, form: Form, size: Size, device: str) -> None:
        draw = torch.Generator().manual_seed(0)
        tokens = size.samples * size.tokens
        x, h, *rows = form.draw(tokens, size.samples, size.channels, draw)
        bf16, fp32 = torch.bfloat16, torch.float32
        typed = [one.to(device, bf16 if one.dim() == 2 else fp32) for one in rows]
        *gate, shift, scale = typed
        ends = torch.arange(size.samples + 1, dtype=torch.int32) * size.tokens
        self.form, self.x, self.h = form, x.to(device, bf16), h.to(device, bf16)
        self.by = Rows(gate[0] if gate else None, scale, shift, ends.to(device))
        self.grad, self.stream = torch.randn_like(self.x), torch.randn_like(self.x)
        self.out, self.mean, self.rstd = self.forward(FORWARD)[1:]

    @property
    def affine(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Scale, shift and offsets as the norm's own kernels take them."""
        if self.form.modulated:
            return self.by.scale, self.by.shift, self.by.cu_seqlens
        return self.by.scale[None], self.by.shift[None], None

    def forward(self, cut: Cut) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return forward_triton(self.x, self.h, self.by, eps=EPS, dtype=self.x.dtype, cut=cut)

    def backward(self, cut: Cut) -> object:
        saved = (self.out, self.h, self.mean, self.rstd)
        return backward_triton((self.grad, self.stream), saved, self.by, sums=True, cut=cut)

    def forward_apart(self) -> object:
        gate, cu = self.by.gate_BC, self.by.cu_seqlens
        out = self.x + self.h if gate is None else gates.forward_triton(self.x, self.h, gate, cu)
        options: dict[str, Any] = {"eps": EPS, "dtype": out.dtype}
        return norms.forward_triton(out, *self.affine, plus_one=self.form.modulated, **options)

    def backward_apart(self) -> object:
        scale, _, cu = self.affine
        dx, *_ = norms.backward_triton(
            self.grad, self.stream, self.out, self.mean, self.rstd, scale, cu,
            plus_one=self.form.modulated, sums=True,
        )  # fmt: skip
        gate = self.by.gate_BC
        if gate is None:
            return dx
        return gates.backward_triton(dx, self.h, gate, self.by.cu_seqlens, sums=True)


def median_us(calls: Mapping[str, Call], size: Size, device: str) -> dict[str, float]:
    """Of each call: the rounds take turns, so that a slow moment touches all."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(size.rounds):
        for name, call in calls.items():
            times[name].append(_once_us(call, size.calls, device))
    return {name: statistics.median(found) for name, found in times.items()}


def _once_us(call: Call, count: int, device: str) -> float:
    if not device.startswith("cuda"):
        began = time.perf_counter()
        for _ in range(count):
            call()
        return 1e6 * (time.perf_counter() - began) / count
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    first.record()
    for _ in range(count):
        call()
    last.record()
    torch.cuda.synchronize()
    return 1e3 * float(first.elapsed_time(last)) / count


def cuts_of(shipped: Cut, others: tuple[Cut, ...], size: Size) -> list[Cut]:
    """The shipped cut first; in a rehearsal one other."""
    rest = [one for one in others if one != shipped]
    return [shipped, *(rest[:1] if size == REHEARSAL else rest)]


def rows_of(name: str, form: Form, size: Size, device: str) -> list[dict[str, Any]]:
    """The lines of one form, both directions."""
    on = Operands(form, size, device)
    found: list[dict[str, Any]] = []
    directions = {
        "forward": (on.forward_apart, on.forward, cuts_of(FORWARD, FORWARD_CUTS, size), 4),
        "backward": (
            on.backward_apart,
            on.backward,
            cuts_of(BACKWARD, BACKWARD_CUTS, size),
            6 if form.gated else 4,
        ),
    }
    for direction, (apart, fused, cuts, passes) in directions.items():
        calls: dict[str, Call] = {"apart": apart}
        for cut in cuts:
            label = f"rows {cut.rows} elements {cut.elements}"
            calls[label] = lambda fused=fused, cut=cut: fused(cut)
        times = median_us(calls, size, device)
        for what, us in times.items():
            moved = passes * size.rows_bytes
            found.append(
                {
                    "form": name,
                    "direction": direction,
                    "what": what,
                    "shipped": what == list(times)[1],
                    "us": us,
                    "gb_per_s": moved / us / 1e3,
                    "of_apart": times["apart"] / us,
                }
            )
    return found


def copy_us(size: Size, device: str) -> float:
    """A copy of as many rows, read and written."""
    rows = torch.zeros(int(size.rows_bytes), dtype=torch.uint8, device=device)
    other = torch.empty_like(rows)
    return median_us({"copy": lambda: other.copy_(rows)}, size, device)["copy"]


def run(device: str, *, rehearse: bool, out: Path | None) -> dict[str, Any]:
    """Measure all forms, printing each line as it is known."""
    size = REHEARSAL if rehearse else Size()
    copied = copy_us(size, device)
    print(f"copy {copied:9.1f} us {2 * size.rows_bytes / copied / 1e3:7.0f} GB/s", flush=True)
    stored: dict[str, Any] = {"rehearsal": rehearse, "copy_us": copied, "rows": []}
    for name, form in FORMS.items():
        for row in rows_of(name, form, size, device):
            stored["rows"].append(row)
            print(
                f"{name:18}{row['direction']:9}{row['what']:24}{row['us']:9.1f} us"
                f"{row['gb_per_s']:7.0f} GB/s{row['of_apart']:6.2f}x of apart"
                f"{'  as shipped' if row['shipped'] else ''}",
                flush=True,
            )
        if out:
            out.write_text(json.dumps(stored, indent=1))
    return stored


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rehearse", action="store_true", help="tiny rows, interpreted on a CPU")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    run(asked.device, rehearse=asked.rehearse, out=asked.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
