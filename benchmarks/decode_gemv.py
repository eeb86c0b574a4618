"""The fused block's products, matrix by matrix, in every cut into programs that a sweep tries.

    python -m benchmarks.decode_gemv [--device cuda:0] [--models 0.6b,4b] [--rows 1,8,32]
                                     [--seconds 400] [--jobs 8] [--out FILE]

Each call is one of a CUDA graph that walks through copies of the matrix that together are several
times larger than the second-level cache, so that every weight comes from memory. The first line of
a product is the table's own tiling (:mod:`levers.kernels.gemv_tilings`), ``early`` is the same with
programmatic dependent launch; the best is what the table should say. Beside them stands what the
fused launch replaces: PyTorch's product alone. Kernels are compiled by ``--jobs`` processes before
anything is timed. On a CPU the same script rehearses at small sizes on the plain path. This is a
benchmark of operations and no verdict.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from levers.kernels.gemv import Norm, Scratch, fused_linear
from levers.kernels.gemv_tilings import LARGEST_NORMED_ROWS, Tiling, candidates

COPY_BYTES_PER_S = 4.3e12
"""Device-to-device copy on an H200, read and write together, as measured."""
WALK_BYTES = 256 << 20
"""Copies of a matrix that one graph walks through: four times an H200's cache of 60 MB."""
REPEATS = 9
VOCABULARY = 151936
MODELS: dict[str, dict[str, tuple[int, int, bool, bool]]] = {
    "0.6b": {
        "qkv": (4096, 1024, True, False),
        "o": (1024, 2048, False, False),
        "gate_up": (3072, 1024, True, True),
        "down": (1024, 3072, False, False),
        "head": (VOCABULARY, 1024, False, False),
    },
    "4b": {
        "qkv": (6144, 2560, True, False),
        "o": (2560, 4096, False, False),
        "gate_up": (9728, 2560, True, True),
        "down": (2560, 9728, False, False),
        "head": (VOCABULARY, 2560, False, False),
    },
    "rehearsal": {"qkv": (96, 64, True, False), "gate_up": (64, 64, True, True)},
}
"""Outputs, inputs, whether normed, whether gated (Qwen3's published config.json)."""


@dataclass(frozen=True)
class Product:
    """One matrix of a model at a number of rows."""

    model: str
    matrix: str
    rows: int
    outputs: int
    inputs: int
    normed: bool
    gated: bool

    @property
    def weight_rows(self) -> int:
        return self.outputs * (2 if self.gated else 1)

    @property
    def weight_bytes(self) -> int:
        return 2 * self.weight_rows * self.inputs

    def tensors(self, device: str, copies: int) -> tuple[Tensor, Norm | None, list[Tensor]]:
        """Rows, what stands before the product, and copies of the weights."""
        x, delta = torch.randn(2, self.rows, self.inputs, device=device).bfloat16()
        weight = torch.randn(self.weight_rows, self.inputs, device=device).bfloat16()
        weight *= self.inputs**-0.5
        norm = None
        if self.normed and self.rows <= LARGEST_NORMED_ROWS:
            norm = Norm(torch.ones_like(x[0]), 1e-6, delta, torch.empty_like(x))
        return x, norm, [weight.clone() for _ in range(copies)]

    def tilings(self) -> list[Tiling]:
        """The table's own first, then the same early, then the others."""
        found = list(candidates(self.rows, self.outputs, self.inputs, swiglu=self.gated))
        if self.normed:
            found = [replace(found[0], splits=1), *(one for one in found[1:] if one.splits == 1)]
        return [found[0], replace(found[0], early=True), *found[1:]]


def products(models: list[str], rows: list[int]) -> list[Product]:
    return [
        Product(model, matrix, count, *shape)
        for model in models
        for count in rows
        for matrix, shape in MODELS[model].items()
    ]


def compiled(job: tuple[Product, Tiling, str]) -> str:
    """Compile and run one launch, in a process of its own; what went wrong, or nothing."""
    product, tile, device = job
    torch.set_num_threads(1)
    x, norm, (weight,) = product.tensors(device, 1)
    try:
        fused_linear(x, weight, norm, swiglu=product.gated, scratch=Scratch(), tile=tile)
        torch.cuda.synchronize()
    except (RuntimeError, _of_triton()) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return ""


def _of_triton() -> type[Exception]:
    """What Triton raises: a kernel that does not compile or needs more room than an SM has."""
    from triton.errors import TritonError

    found: type[Exception] = TritonError
    return found


def compile_all(
    jobs: list[tuple[Product, Tiling, str]], processes: int, deadline: float
) -> dict[tuple[Product, Tiling], str]:
    """Fill Triton's cache; those that cannot run or were not reached, with the reason."""
    context = multiprocessing.get_context("spawn")
    bad: dict[tuple[Product, Tiling], str] = {}
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [(job, pool.submit(compiled, job)) for job in jobs]
        for (product, tile, _), future in futures:
            if time.monotonic() > deadline and not future.done():
                future.cancel()
                bad[product, tile] = "not reached"
                continue
            reason = future.result()
            if reason:
                bad[product, tile] = reason
    return bad


def timed_us(calls: Sequence[Callable[[], object]], device: str) -> float:
    """Median microseconds of one call of a walk."""
    if device == "cpu":
        begin = time.perf_counter()
        for call in calls:
            call()
        return 1e6 * (time.perf_counter() - begin) / len(calls)
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(REPEATS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(calls))
    return statistics.median(times[2:])


def sweep(
    product: Product, device: str, bad: dict[tuple[Product, Tiling], str], deadline: float
) -> Iterator[dict[str, Any]]:
    """PyTorch's product, then every tiling."""
    copies = 2 if device == "cpu" else max(3, -(-WALK_BYTES // product.weight_bytes))
    x, norm, weights = product.tensors(device, copies)
    scratch = Scratch()
    separate = [partial(functional.linear, x, weight) for weight in weights]
    yield _row(product, "torch", timed_us(separate, device))
    for index, tile in enumerate(product.tilings()):
        if (product, tile) in bad:
            yield {**asdict(product), "tiling": str(tile), "left_out": bad[product, tile]}
            continue
        if index > 1 and time.monotonic() > deadline:
            yield {**asdict(product), "tiling": str(tile), "left_out": "out of time"}
            continue
        one = partial(fused_linear, swiglu=product.gated, scratch=scratch, tile=tile)
        calls = [partial(one, x, weight, norm) for weight in weights]
        yield {**_row(product, str(tile), timed_us(calls, device)), "cut": asdict(tile)}


def _row(product: Product, tiling: str, us: float) -> dict[str, Any]:
    floor_us = 1e6 * product.weight_bytes / COPY_BYTES_PER_S
    shown = {"tiling": tiling, "us": round(us, 3), "floor_ratio": round(us / floor_us, 3)}
    return {**asdict(product), **shown, "gb_per_s": round(product.weight_bytes / us / 1e3)}


def shown(found: list[dict[str, Any]]) -> str:
    """One line of a product: PyTorch, the table's tiling, the best."""
    timed = [one for one in found if "us" in one]
    torch_row, own, *rest = timed
    best = min([own, *rest], key=lambda one: one["us"])
    early = next((one for one in rest if one["tiling"] == f"{own['tiling']} early"), None)
    words = [
        f"{own['model']:>9} {own['matrix']:8} N={own['rows']:<3}",
        f"torch {torch_row['us']:7.2f} us",
        f"table {own['us']:7.2f} us ({own['tiling']})",
        f"early {early['us']:7.2f} us" if early else "",
        f"best {best['us']:7.2f} us {best['floor_ratio']:.2f} x floor ({best['tiling']})",
    ]
    return "  ".join(words)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The best of each product as lines of the tables in ``levers.kernels.gemv_tilings``."""
    best: dict[tuple[int, int, int, bool], dict[str, Any]] = {}
    for row in rows:
        key = row["rows"], row["outputs"], row["inputs"], row["gated"]
        if "cut" in row and (key not in best or row["us"] < best[key]["us"]):
            best[key] = row
    return [
        f"N={count}: ({outputs}, {inputs}, {gated}): {Tiling(**row['cut'])!r},"
        for (count, outputs, inputs, gated), row in sorted(best.items())
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    on_cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda:0" if on_cuda else "cpu")
    parser.add_argument("--models", default="0.6b,4b" if on_cuda else "rehearsal")
    parser.add_argument("--rows", default="1,8,32" if on_cuda else "1,3")
    parser.add_argument("--seconds", type=float, default=400.0, help="compiling and timing")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    out = os.environ.get("OUT")
    default = Path(out) / "decode_gemv.json" if out else None
    parser.add_argument("--out", type=Path, default=default)
    asked = parser.parse_args()
    began = time.monotonic()
    todo = products(asked.models.split(","), [int(n) for n in asked.rows.split(",")])
    bad: dict[tuple[Product, Tiling], str] = {}
    if asked.device != "cpu":
        by_turn = [(tile, product) for product in todo for tile in enumerate(product.tilings())]
        by_turn.sort(key=lambda pair: pair[0][0])
        jobs = [(product, tile, asked.device) for (_, tile), product in by_turn]
        bad = compile_all(jobs, asked.jobs, began + 0.6 * asked.seconds)
        print(f"{len(jobs)} kernels in {time.monotonic() - began:.0f} s, {len(bad)} left out")
    rows: list[dict[str, Any]] = []
    for product in todo:
        found = list(sweep(product, asked.device, bad, began + asked.seconds))
        print(shown(found), flush=True)
        rows += found
        if asked.out:
            asked.out.write_text(json.dumps({"argv": sys.argv[1:], "rows": rows}, indent=1))
    for line in table(rows):
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
