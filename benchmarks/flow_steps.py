"""A fast look at a flow workload's step: lever after lever switched on inside one process.

No verdict and no interval (``levergate stack`` gives those): the median of a few steps for each set
of levers, what the device did during them (clock, power, temperature, throttle reasons), and for
the last set where its time goes, kernel by kernel.

    python -m benchmarks.flow_steps slat_flow --device cuda:0 --set size=xl \
        --levers segment_sum_broadcast=on,attn_backend=fa4 --out flow_steps.json
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.arguments import assignment
from benchmarks.device_watch import Unwatched, Watch, watching
from benchmarks.device_watch import line as device_line
from experiments.environment import find_device
from experiments.workloads import catalog as workloads
from levers import catalog
from levers.base import engaged

SHOWN = 45
"""Kernels of the profile, the longest first."""

IDLE_SHOWN = 15
"""Pairs of neighbouring kernels between which most time passes."""


HOST = ("enqueue_s", "enqueue_forward_s")
"""What a sample on CUDA says of the host: its time to enqueue a step, and the step's forward."""


def settings(text: str) -> list[tuple[str, str]]:
    """``a=on,b=fa4`` as pairs."""
    return [(name, setting) for name, _, setting in (one.partition("=") for one in text.split(","))]


def measured(session: Any, watch: Watch | Unwatched) -> dict[str, Any]:
    """Median seconds of a step, utilisation and peak bytes, and what the device did meanwhile."""
    began_s = time.monotonic()
    session.warm_up()
    warm_s = time.monotonic()
    found = session.measure()
    steps_s = found.raw["step_s"]
    return {
        "values": {**found.values, "warmup_s": warm_s - began_s},
        "step_s": steps_s,
        **{name: found.raw[name] for name in HOST if name in found.raw},
        "device": watch.during(warm_s, warm_s + math.fsum(steps_s)),
    }


def line(row: Mapping[str, Any]) -> str:
    """What a person reads of one set."""
    if "out_of_memory" in row:
        return f"  out of memory: {row['out_of_memory']}"
    values = row["values"]
    return (
        f"{values['train/step_ms']:9.1f} ms  true MFU {values['train/mfu_true']:5.1f} %"
        f"  {values['memory/peak_bytes'] / 1e9:6.1f} GB  warm-up {values['warmup_s']:.0f} s"
        f"{host_line(row)}  {device_line(row['device'])}"
    )


def host_line(row: Mapping[str, Any]) -> str:
    """How long the host works ahead of the device; nothing where it is the device."""
    if not row.get("enqueue_s"):
        return ""
    whole, forward = (1e3 * statistics.median(row[name]) for name in HOST)
    return (
        f"  the host takes {whole:.1f} ms to enqueue a step of "
        f"{1e3 * statistics.median(row['step_s']):.1f} ms, {forward:.1f} of them in the forward"
    )


def profiled(session: Any, steps: int = 2) -> dict[str, Any]:
    """Device microseconds a step of each kernel, and the largest times without any kernel."""
    on_cuda = session.device.startswith("cuda")
    activities = [ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU]
    with profile(activities=activities, acc_events=True) as seen:
        for _ in range(steps):
            session.step().run()
        if on_cuda:
            torch.cuda.synchronize()
    rows = [
        {
            "kernel": one.key[:150],
            "us": (one.self_device_time_total or one.self_cpu_time_total) / steps,
            "calls": one.count / steps,
        }
        for one in seen.key_averages()
        if not on_cuda or one.device_type == torch.autograd.DeviceType.CUDA
    ]
    found: dict[str, Any] = {"kernels": sorted(rows, key=lambda row: -row["us"])}
    return found | (idle(seen, steps) if on_cuda else {})


def idle(seen: Any, steps: int) -> dict[str, Any]:
    """The time between kernels: its sum a step, by length, and after which kernels most is lost."""
    spans = sorted(
        (one.time_range.start, one.time_range.end, one.name)
        for one in seen.events()
        if one.device_type == torch.autograd.DeviceType.CUDA
    )
    gaps: list[tuple[float, str, str]] = []
    end, last = spans[0][0], ""
    for start, stop, name in spans:
        if start > end:
            gaps.append((start - end, last[:60], name[:60]))
        if stop > end:
            end, last = stop, name
    lengths = ((0, 2), (2, 5), (5, 20), (20, 100), (100, float("inf")))
    by_pair: dict[tuple[str, str], float] = {}
    for gap, before, after in gaps:
        by_pair[before, after] = by_pair.get((before, after), 0.0) + gap / steps
    longest = sorted(by_pair.items(), key=lambda item: -item[1])[:IDLE_SHOWN]
    return {
        "idle_us": sum(gap for gap, _, _ in gaps) / steps,
        "idle_us_by_length": {
            f"{low} to {high} us": sum(gap for gap, _, _ in gaps if low <= gap < high) / steps
            for low, high in lengths
        },
        "idle_between": [{"after": a, "before": b, "us": us} for (a, b), us in longest],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--levers", default="", help="in the order in which they are added")
    parser.add_argument("--set", action="append", type=assignment, default=[], metavar="KEY=VALUE")
    counts_of = parser.add_mutually_exclusive_group()
    counts_of.add_argument("--whole", action="store_true", help="only no lever and all of them")
    counts_of.add_argument("--first", type=int, default=0, help="levers that the first set has")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    workload = workloads.get(asked.workload)
    requested = dict(asked.set)
    device = find_device(asked.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    parameters = workload.resolve(requested, device.facts)
    module, name = workload.opener.split(":")
    opener = getattr(importlib.import_module(module), name)
    added = len(settings(asked.levers)) if asked.levers else 0
    counts: Sequence[int] = sorted({0, added}) if asked.whole else range(asked.first, added + 1)
    if not counts:
        parser.error(f"--first {asked.first} of {added} levers leaves no set to measure")
    with watching(device) as watch:
        rows = measured_sets(asked, opener, parameters, counts, watch)
    if "kernels" in rows[-1]:
        table(rows[-1])
    return 0


def measured_sets(
    asked: argparse.Namespace,
    opener: Callable[..., Any],
    parameters: Mapping[str, Any],
    counts: Sequence[int],
    watch: Watch | Unwatched,
) -> list[dict[str, Any]]:
    """A row for each set of levers, printed and stored as it is known."""
    added = settings(asked.levers) if asked.levers else []
    rows: list[dict[str, Any]] = []
    for count in counts:
        row: dict[str, Any] = {"levers": asked.levers.split(",")[:count]}
        last = count == counts[-1]
        try:
            row |= one_set(opener, parameters, asked.device, added[:count], last, watch)
        except torch.OutOfMemoryError as error:
            row["out_of_memory"] = str(error).split(". ")[0]
        rows.append(row)
        print(f"{added[count - 1][0] if count else 'nothing':26}{line(row)}", flush=True)
        if asked.out:
            asked.out.write_text(json.dumps({"parameters": parameters, "rows": rows}, indent=1))
        if asked.device.startswith("cuda"):
            torch.cuda.empty_cache()
    return rows


def one_set(
    opener: Callable[..., Any],
    parameters: Mapping[str, Any],
    device: str,
    levers: Sequence[tuple[str, str]],
    last: bool,
    watch: Watch | Unwatched,
) -> dict[str, Any]:
    """Figures of one set of levers in a session of its own; of the last one the kernels too."""
    session = opener(parameters, device, 0, "engine")
    with contextlib.ExitStack() as stack:
        for lever, setting in levers:
            stack.enter_context(engaged(catalog.get(lever), session.sites, setting))
        row = measured(session, watch)
        return row | (profiled(session) if last else {})


def table(row: Mapping[str, Any]) -> None:
    """The kernels of a step, the longest first, and the times between them."""
    total = math.fsum(one["us"] for one in row["kernels"])
    print(f"\n{'us a step':>12} {'share':>6} {'calls':>6}  kernel (sum {total / 1e3:.1f} ms)")
    for one in row["kernels"][:SHOWN]:
        print(
            f"{one['us']:12.0f} {one['us'] / total:6.1%} {one['calls']:6.0f}  {one['kernel'][:120]}"
        )
    for name in ("idle_us", "idle_us_by_length", "idle_between"):
        print(name, json.dumps(row.get(name), indent=1))


if __name__ == "__main__":
    raise SystemExit(main())
