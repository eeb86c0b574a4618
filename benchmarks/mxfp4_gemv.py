"""Products with MXFP4 weights against PyTorch's bf16 ones, matrix by matrix of the 0.6 B and 4 B.

    python -m benchmarks.mxfp4_gemv [--device cuda:0] [--models 0.6b,4b] [--rows 1,2,4,8,16,32]
                                    [--out FILE]
    python -m benchmarks.mxfp4_gemv --variants [--seconds 55] [--jobs 16] [--rows 1,8,32]
    python -m benchmarks.mxfp4_gemv --write FILE    # the module of the best cuts, from such a file

Each call is one of a CUDA graph that walks through copies of the matrix which together are several
times larger than the L2 cache, so that every weight comes from memory. Bytes are those that the
product must read: weights as stored, and activations. ``--variants`` times every cut into programs
instead, each checked against PyTorch's product first. On a CPU the same script rehearses at small
sizes, on the plain path. This is a benchmark of operations and no verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from levers.kernels.mxfp4_matrix import Mxfp4Weight, quantise
from levers.kernels.mxfp4_plans import plan_of

COPY_BYTES_PER_S = 4.3e12
"""Device-to-device copy on an H200, read and write, as measured."""
WALK_BYTES = 512 << 20
"""Copies of a matrix that one graph walks through, in its bf16 form: more than eight times an
H200's L2 cache of 60 MB, and in four bits still more than twice."""
VOCABULARY = 151936
MODELS = {
    "0.6b": {
        "qkv": (4096, 1024),
        "o": (1024, 2048),
        "gate_up": (6144, 1024),
        "down": (1024, 3072),
        "head": (VOCABULARY, 1024),
    },
    "4b": {
        "qkv": (6144, 2560),
        "o": (2560, 4096),
        "gate_up": (19456, 2560),
        "down": (2560, 9728),
        "head": (VOCABULARY, 2560),
    },
    "rehearsal": {"qkv": (512, 128), "down": (128, 512)},
}
"""Outputs and inputs of Qwen3's matrices (their published config.json)."""


@dataclass(frozen=True)
class Line:
    """One product: medians in microseconds."""

    model: str
    matrix: str
    rows: int
    gate: bool
    bf16_us: float
    mxfp4_us: float
    read_bytes: int
    plan: str

    @property
    def ratio(self) -> float:
        return self.bf16_us / self.mxfp4_us

    @property
    def gb_per_s(self) -> float:
        return self.read_bytes / self.mxfp4_us / 1e3


@dataclass(frozen=True)
class Timer:
    """Microseconds of one call of a walk through copies."""

    device: torch.device
    repeats: int

    def us(self, calls: list[Callable[[], object]]) -> float:
        once = self._graph if self.device.type == "cuda" else self._host
        return once(calls)

    def _graph(self, calls: list[Callable[[], object]]) -> float:
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        times = []
        for _ in range(self.repeats + 2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1e3 * start.elapsed_time(end) / len(calls))
        return statistics.median(times[2:])

    def _host(self, calls: list[Callable[[], object]]) -> float:
        times = []
        for _ in range(self.repeats):
            for call in calls:
                begin = time.perf_counter()
                call()
                times.append(1e6 * (time.perf_counter() - begin))
        return statistics.median(times)


@dataclass(frozen=True)
class Copies:
    """A matrix in both forms, as often as a walk needs it."""

    plain: list[Tensor]
    packed: list[Mxfp4Weight]

    @classmethod
    def of(cls, shape: tuple[int, int], device: str) -> Copies:
        on_cuda = device.startswith("cuda")
        dtype = torch.bfloat16 if on_cuda else torch.float32
        plain = torch.randn(shape, device=device, dtype=dtype) * shape[1] ** -0.5
        packed = quantise(plain)
        count = max(2, -(-WALK_BYTES // plain.nbytes)) if on_cuda else 2
        again = [
            Mxfp4Weight(packed.words.clone(), packed.codes.clone(), *shape)
            for _ in range(count - 1)
        ]
        return cls([plain, *(plain.clone() for _ in range(count - 1))], [packed, *again])


def bf16_call(x: Tensor, weight: Tensor, *, gate: bool) -> Tensor:
    product = functional.linear(x, weight)
    if not gate:
        return product
    left, right = product.chunk(2, dim=-1)
    return functional.silu(left) * right


def mxfp4_call(x: Tensor, weight: Mxfp4Weight, *, gate: bool) -> Tensor:
    return weight.swiglu(x) if gate else weight.linear(x)


def lines(device: str, model: str, rows: list[int], timer: Timer) -> Iterator[Line]:
    """Every matrix of a model at every number of rows; gate_up with and without its gate."""
    for name, shape in MODELS[model].items():
        copies = Copies.of(shape, device)
        for count in rows:
            x = torch.randn(count, shape[1], device=device, dtype=copies.plain[0].dtype)
            for gate in (False, True) if name == "gate_up" else (False,):
                yield measured(model, name, x, copies, timer, gate=gate)
        del copies


def measured(model: str, name: str, x: Tensor, copies: Copies, timer: Timer, *, gate: bool) -> Line:
    """Both forms of one product in turn."""
    first, count = copies.packed[0], x.shape[0]
    plain_us = timer.us([lambda w=w: bf16_call(x, w, gate=gate) for w in copies.plain])  # type: ignore[misc]
    packed_us = timer.us([lambda w=w: mxfp4_call(x, w, gate=gate) for w in copies.packed])  # type: ignore[misc]
    plan = "dequantised"
    if x.device.type == "cuda":
        outputs = first.outputs // 2 if gate else first.outputs
        plan = str(plan_of(outputs, first.inputs, count, gate=gate))
    read = first.nbytes + x.nbytes
    return Line(model, name, count, gate, plain_us, packed_us, read, plan)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All lines of one device."""
    torch.manual_seed(0)
    device = torch.device(options.device)
    on_cuda = device.type == "cuda"
    timer = Timer(device, options.repeats)
    models = options.models.split(",") if on_cuda else ["rehearsal"]
    rows = [int(one) for one in options.rows.split(",")]
    found: list[Line] = []
    for model in models:
        for line in lines(options.device, model, rows, timer):
            print(row_of(line, on_cuda=on_cuda), flush=True)
            found.append(line)
    return {
        "device": torch.cuda.get_device_name(device) if on_cuda else "cpu",
        "torch": torch.__version__,
        "repeats": options.repeats,
        "lines": [{**asdict(x), "ratio": x.ratio, "gb_per_s": x.gb_per_s} for x in found],
    }


HEAD = (
    f"{'model':9} {'matrix':15} {'rows':>4} {'bf16 us':>9} {'mxfp4 us':>9} {'ratio':>7} "
    f"{'GB/s':>6} {'of 4300':>7}  plan"
)


def row_of(line: Line, *, on_cuda: bool) -> str:
    """One line of the table."""
    share = f"{1e11 * line.gb_per_s / COPY_BYTES_PER_S:6.0f}%" if on_cuda else f"{'':7}"
    matrix = line.matrix + (" and gate" if line.gate else "")
    return (
        f"{line.model:9} {matrix:16} {line.rows:3} {line.bf16_us:9.2f} {line.mxfp4_us:9.2f} "
        f"{line.ratio:6.2f}x {line.gb_per_s:6.0f} {share}  {line.plan}"
    )


def main(arguments: list[str]) -> int:
    """Measure, or write the module of what was measured."""
    from benchmarks import mxfp4_variants as variants

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default="0.6b,4b")
    parser.add_argument("--rows")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--seconds", type=float, default=55.0, help="of --variants")
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--module", type=Path, default=variants.MODULE)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.write:
        options.module.write_text(variants.module_text(json.loads(options.write.read_text())))
        print(f"wrote {options.module}")
        return 0
    options.rows = options.rows or ("1,8,32" if options.variants else "1,2,4,8,16,32")
    folder, name = os.environ.get("OUT"), "mxfp4_variants" if options.variants else "mxfp4_gemv"
    options.out = options.out or (Path(folder) / f"{name}.json" if folder else None)
    if options.variants:
        return variants.run(options)
    print(HEAD)
    found = run(options)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
