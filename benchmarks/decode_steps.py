"""A fast look at the decode step: sets of levers switched on inside one process, kernel by kernel.

    python -m benchmarks.decode_steps [--models random-0.6b,random-4b] [--concurrency 1,8,32]
        [--levers none] [--levers fused_chain=on,qk_norm_rope=on]
        [--levers fused_chain=on,fused_block=on] [--levers fused_chain=on,fused_block=early]
        [--tilings decode_gemv.json] [--set KEY=VALUE] [--steps 40] [--out FILE]

For each model, set of levers and concurrency: the median step in milliseconds (captured on CUDA, by
events over groups of replays), tokens a second, and the ratio to the bandwidth floor (weights as
stored and the cached tokens, at 4.3 TB/s on an H200, else at the copy rate measured here). The last
set of levers, or each with ``--profile``, is followed by a table of its kernels at every
concurrency: calls and microseconds a step, and the time in which none ran. Caches are filled with
random keys and values and not by a prefill. ``--tilings`` gives the fused block's products the best
cuts of a sweep by ``decode_gemv`` in place of the table. No verdict and no interval: ``levergate
ab`` gives those.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.arguments import assignment
from experiments.environment import find_device
from experiments.workloads.decode import floor
from experiments.workloads.decode.building import build_engine
from experiments.workloads.decode.engine import DecodeEngine
from experiments.workloads.decode.folder import model_config
from experiments.workloads.decode.names import BLOCK
from experiments.workloads.decode.workload import DECODE
from levers import catalog
from levers.base import engaged
from levers.kernels.fused_block import Choose, FusedBlock
from levers.kernels.gemv_tilings import Tiling, tiling

GROUPS = 5
"""Groups of steps, each timed as one; the median counts."""
SHOWN = 30
"""Kernels of a profile, the longest first."""


def settings(text: str) -> list[tuple[str, str]]:
    """``a=on,b=fa3`` as pairs; ``none`` is no lever."""
    if text == "none":
        return []
    return [(name, setting) for name, _, setting in (one.partition("=") for one in text.split(","))]


def swept(path: Path) -> Choose:
    """The best cut of each product that ``decode_gemv`` found; the table's where it found none."""
    best: dict[tuple[int, int, bool], dict[int, tuple[float, Tiling]]] = {}
    for row in json.loads(path.read_text())["rows"]:
        if "cut" in row:
            products = best.setdefault((row["outputs"], row["inputs"], row["gated"]), {})
            found = row["us"], Tiling(**row["cut"])
            if row["rows"] not in products or found[0] < products[row["rows"]][0]:
                products[row["rows"]] = found

    def choose(count: int, outputs: int, inputs: int, *, swiglu: bool, norm: bool) -> Tiling:
        rows = best.get((outputs, inputs, swiglu), {})
        near = [n for n in sorted(rows) if n >= count and (n == 1) == (count == 1)]
        if not near:
            return tiling(count, outputs, inputs, swiglu=swiglu, norm=norm)
        one = rows[near[0]][1]
        return replace(one, splits=1) if norm or swiglu else one

    return choose


@contextlib.contextmanager
def switched(engine: DecodeEngine, levers: str, choose: Choose | None) -> Iterator[None]:
    """The engine with the levers on, its graphs dropped on both sides."""
    with contextlib.ExitStack() as stack:
        for name, setting in settings(levers):
            stack.enter_context(engaged(catalog.get(name), engine.sites.by_name, setting))
        site = engine.sites.by_name[BLOCK]
        if choose is not None and isinstance(site.launch, FusedBlock):
            found = site.launch
            site.launch = found.with_tilings(choose)
            stack.callback(setattr, site, "launch", found)
        engine.forget_graphs()
        yield
    engine.forget_graphs()


def filled(engine: DecodeEngine) -> None:
    """Random keys and values in every layer, in place."""
    layers = len(engine.weights.layers)
    for layer in range(layers):
        for rows in engine.attention.cache.flat(layer):
            rows.normal_()


def start(engine: DecodeEngine, count: int, length: int) -> None:
    engine.tokens_B[:count] = torch.arange(1, count + 1, device=engine.tokens_B.device)
    engine.positions_B[:count] = length


def step_of(engine: DecodeEngine, count: int) -> Callable[[], Tensor]:
    engine.plan(count)
    return engine.sites.step(engine, count)


def step_ms(engine: DecodeEngine, count: int, length: int, steps: int) -> float:
    """Median over groups of the milliseconds of one step."""
    step = step_of(engine, count)
    on_cuda = engine.device.type == "cuda"
    times = []
    for _ in range(GROUPS + 1):
        start(engine, count, length)
        if on_cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
            begin.record()
            for _ in range(steps):
                step()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / steps)
        else:
            began = time.perf_counter()
            for _ in range(steps):
                step()
            times.append(1e3 * (time.perf_counter() - began) / steps)
    return statistics.median(times[1:])


def floor_ms(engine: DecodeEngine, count: int, tokens: float, rate: float) -> float:
    """Weights as they are stored and the cached tokens, at the copy rate."""
    read = floor.read_bytes(engine.weights)
    return 1e3 * (read + floor.kv_bytes(engine.config, count * tokens, engine.dtype)) / rate


def profiled(engine: DecodeEngine, count: int, length: int, steps: int = 5) -> dict[str, Any]:
    """Calls and device microseconds a step of each kernel, and the time in which none ran."""
    step = step_of(engine, count)
    start(engine, count, length)
    on_cuda = engine.device.type == "cuda"
    kind = ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU
    with profile(activities=[kind], acc_events=True) as seen:
        for _ in range(steps):
            step()
        if on_cuda:
            torch.cuda.synchronize()
    rows = [
        {
            "kernel": one.key[:120],
            "us": round((one.self_device_time_total or one.self_cpu_time_total) / steps, 2),
            "calls": one.count / steps,
        }
        for one in seen.key_averages()
        if not on_cuda or one.device_type == torch.autograd.DeviceType.CUDA
    ]
    found: dict[str, Any] = {"kernels": sorted(rows, key=lambda row: -row["us"])}
    spans = sorted(
        (one.time_range.start, one.time_range.end)
        for one in seen.events()
        if on_cuda and one.device_type == torch.autograd.DeviceType.CUDA
    )
    idle, last = 0.0, spans[0][0] if spans else 0.0
    for begin, end in spans:
        idle += max(0.0, begin - last)
        last = max(last, end)
    return found | {"idle_us": round(idle / steps, 1)}


def show(found: dict[str, Any]) -> None:
    total = sum(one["us"] for one in found["kernels"])
    calls = sum(one["calls"] for one in found["kernels"])
    print(f"    {calls:.0f} kernels, {total:.0f} us, none for {found['idle_us']:.0f} us")
    for one in found["kernels"][:SHOWN]:
        print(f"    {one['us']:9.1f} us {one['calls']:6.1f} x  {one['kernel'][:96]}")


def measured(
    engine: DecodeEngine, levers: str, counts: list[int], asked: argparse.Namespace, rate: float
) -> Iterator[dict[str, Any]]:
    """One row a concurrency."""
    length, steps = asked.length, asked.steps
    on_cuda = engine.device.type == "cuda"
    for count in counts:
        ms = step_ms(engine, count, length, steps)
        least = floor_ms(engine, count, length + steps / 2, rate)
        row: dict[str, Any] = {
            "levers": levers,
            "tilings": str(asked.tilings or "table"),
            "concurrency": count,
            "step_ms": round(ms, 4),
            "tok_s": round(1e3 * count / ms, 1),
            "floor_ms": round(least, 4),
            "floor_ratio": round(ms / least, 3),
            "allocated_bytes": torch.cuda.memory_allocated() if on_cuda else 0,
        }
        print(
            f"  c{count:<3} {ms:9.3f} ms {row['tok_s']:10.1f} tok/s "
            f"{row['floor_ratio']:6.2f} x the floor of {least:.3f} ms",
            flush=True,
        )
        if asked.profile or levers == asked.levers[-1]:
            row |= profiled(engine, count, length)
            show(row)
        yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    on_cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda:0" if on_cuda else "cpu")
    parser.add_argument("--models", default="random-0.6b,random-4b" if on_cuda else "shipped")
    parser.add_argument("--concurrency", default="1,8,32" if on_cuda else "1,2")
    parser.add_argument("--levers", action="append", default=[], help="a set; may be repeated")
    parser.add_argument("--tilings", type=Path, help="JSON of decode_gemv: use its best cuts")
    parser.add_argument("--profile", action="store_true", help="kernels of every set")
    parser.add_argument("--set", action="append", type=assignment, default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=40 if on_cuda else 4, help="of a group")
    out = os.environ.get("OUT")
    default = Path(out) / "decode_steps.json" if out else None
    parser.add_argument("--out", type=Path, default=default)
    asked = parser.parse_args()
    asked.levers = asked.levers or ["none"]
    counts = [int(one) for one in asked.concurrency.split(",")]
    requested = dict(asked.set)
    choose = swept(asked.tilings) if asked.tilings else None
    rows: list[dict[str, Any]] = []
    for model in asked.models.split(","):
        device = find_device(asked.device).facts
        named = {"model": model, "concurrency": asked.concurrency, **requested}
        parameters = DECODE.resolve(named, device)
        torch.set_num_threads(int(parameters["threads"] or 1))
        asked.length = int(parameters["prompt_tokens"] or 0)
        asked.steps = min(asked.steps, int(parameters["output_tokens"] or 0))
        config = model_config(model)
        where = torch.device(asked.device)
        with torch.inference_mode():
            engine = build_engine(parameters, config, where, 0, "", max(counts))
            filled(engine)
            rate = floor.copy_rate(where, floor.read_bytes(engine.weights))
        for levers in asked.levers:
            print(f"{model}: {levers}", flush=True)
            with switched(engine, levers, choose), torch.inference_mode():
                for row in measured(engine, levers, counts, asked, rate):
                    rows.append({"model": model, **row})
                    if asked.out:
                        text = json.dumps({"argv": sys.argv[1:], "rows": rows}, indent=1)
                        asked.out.write_text(text)
        del engine
        if on_cuda:
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
