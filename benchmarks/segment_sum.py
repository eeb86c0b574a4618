"""What the fp32 segment sum does to the training step: its speed, and its gradients against fp64.

    python benchmarks/segment_sum.py [--device cuda:0] [--set size=xl ...] [--out FILE]

Both arms run in one process, alternating step by step with the order turned each time, so that a
slow moment touches both. This is a benchmark of the operation and no verdict.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import assignment
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers.base import engaged
from levers.kernels.segment_sum import Segments, broadcast, segment_sum_truth
from levers.kernels.segment_sum_cases import BroadcastCase, CutByOffsets, indexed
from levers.segment_sum_broadcast import LEVER

PUBLISHED_SPEEDUP = 2.10
"""Of the step of a 1.3 B model on an H200, by the same change."""

ROWS = (512, 2222, 8192)
MEANS = (0.0, 0.1, 1.0)
ARMS: dict[str, Callable[[torch.Tensor, CutByOffsets], torch.Tensor]] = {
    "off": indexed,
    "on": broadcast,
}


def step_times(session: TrainingSession, pairs: int) -> dict[str, list[float]]:
    """Seconds of each step of both arms, in turns."""
    times: dict[str, list[float]] = {"off": [], "on": []}
    for arm in ("off", "on"):
        with engaged(LEVER, session.sites, arm):
            session.step().run()
    for pair in range(pairs):
        for arm in ("off", "on") if pair % 2 == 0 else ("on", "off"):
            with engaged(LEVER, session.sites, arm):
                times[arm].append(session.step().timed()[0])
    return times


def speedup(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Ratio of the pairs' times: the median, with the quartiles of the pairs."""
    ratios = sorted(off / on for off, on in zip(times["off"], times["on"], strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": middle, "lower_quartile": low, "upper_quartile": high}


def backward_us(session: TrainingSession, repeats: int = 20) -> dict[str, float]:
    """Microseconds of one broadcast's backward at the step's shape, by arm."""
    layout, channels = session.step().batches()[0].layout, session.config.channels
    device = layout.batch_map.device
    mod = torch.zeros(len(layout.lengths), channels, dtype=torch.bfloat16, device=device)
    grad = torch.randn(layout.tokens, channels, device=device).bfloat16()
    return {arm: _backward_us(call, mod, layout, grad, repeats) for arm, call in ARMS.items()}


def _backward_us(
    call: Callable[..., torch.Tensor],
    mod: torch.Tensor,
    layout: Segments,
    grad: torch.Tensor,
    repeats: int,
) -> float:
    mod = mod.detach().requires_grad_()
    rows = call(mod, layout)
    times = []
    for _ in range(repeats):
        _wait(grad.device)
        start = time.perf_counter()
        torch.autograd.grad(rows, mod, grad, retain_graph=True)
        _wait(grad.device)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def parameter_errors(session: TrainingSession) -> dict[str, dict[str, float]]:
    """Relative error of each parameter's gradient against fp64, by parameter and arm."""
    errors: dict[str, dict[str, float]] = {}
    for arm in ("off", "on"):
        with engaged(LEVER, session.sites, arm):
            for one in session.outputs({"want": "gradients"}).gradients:
                errors.setdefault(one.parameter, {})[arm] = one.relative_error
    return errors


def sum_errors(device: str, channels: int = 64) -> list[dict[str, float]]:
    """Relative error of the sum alone, bf16 rows, by length and mean over sigma."""
    table = []
    for rows in ROWS:
        for mean in MEANS:
            case = BroadcastCase(
                (rows,), lambda z, _, mean=mean: z + mean, torch.bfloat16, device, channels
            )
            inputs = case.inputs(0)
            truth = segment_sum_truth(inputs[1], CutByOffsets(inputs[2]))
            line = {"rows": float(rows), "mean_over_sigma": mean}
            for arm, call in ARMS.items():
                out = case.mod_like(inputs)
                case.backward(call, inputs, out)
                line[arm] = float((out[0].double() - truth).norm() / truth.norm())
            table.append(line)
    return table


def run(device: str, requested: Mapping[str, str], pairs: int) -> dict[str, Any]:
    """All figures of one device."""
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    parameters: Mapping[str, Scalar] = SLAT_FLOW.resolve(requested, DeviceFacts(device, kind, 0))
    session = open_session(parameters, device, 0, "engine")
    assert isinstance(session, TrainingSession)
    times = step_times(session, pairs)
    return {
        "device": kind,
        "torch": torch.__version__,
        "parameters": dict(parameters),
        "tokens": sum(session.config.lengths),
        "step_s": times,
        "median_step_ms": {arm: 1e3 * statistics.median(t) for arm, t in times.items()},
        "speedup": speedup(times),
        "backward_us": backward_us(session),
        "parameter_errors": parameter_errors(session),
        "sum_errors": sum_errors(device),
    }


def improved(errors: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The parameters whose gradient the lever changes, worst reference first."""
    changed = {name: dict(e) for name, e in errors.items() if e["off"] != e["on"]}
    return dict(sorted(changed.items(), key=lambda item: -item[1]["off"]))


def report(found: Mapping[str, Any]) -> str:
    """The figures as a table."""
    ratio, us = found["speedup"], found["backward_us"]
    lines = [
        f"{found['device']}, torch {found['torch']}, {found['tokens']} tokens",
        f"step: off {found['median_step_ms']['off']:.1f} ms, on {found['median_step_ms']['on']:.1f}"
        f" ms; {ratio['median']:.3f}x (quartiles of the pairs {ratio['lower_quartile']:.3f} .. "
        f"{ratio['upper_quartile']:.3f}; published on an H200: {PUBLISHED_SPEEDUP:.2f}x)",
        f"one broadcast's backward: off {us['off']:.0f} us, on {us['on']:.0f} us",
        "",
        f"{'gradient, error against fp64':34} {'off':>9} {'on':>9} {'off/on':>7}",
    ]
    for name, error in improved(found["parameter_errors"]).items():
        lines.append(_line(name, error["off"], error["on"]))
    lines += ["", f"{'sum of bf16 rows, mean/sigma':34} {'off':>9} {'on':>9} {'off/on':>7}"]
    for one in found["sum_errors"]:
        name = f"{one['rows']:.0f} rows, {one['mean_over_sigma']:g}"
        lines.append(_line(name, one["off"], one["on"]))
    return "\n".join(lines)


def _line(name: str, off: float, on: float) -> str:
    times = off / on if on else math.inf
    return f"{name:34} {off:9.2e} {on:9.2e} {times:6.1f}x"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--set", action="append", type=assignment, default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    requested = dict(options.set)
    found = run(options.device, requested, options.pairs)
    print(report(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
