"""Noise and effect of a decode comparison, from fresh processes in alternating pairs.

For each axis: the mean and standard deviation of the pair's log ratio (candidate over reference,
signed so that > 0 is better), once with both arms equal (A/A) and once with the candidate's
setting, and the seconds that a process takes.

    python benchmarks/decode_noise.py --cand auto --pairs 8 --out decode_noise.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.arguments import assignment
from experiments.arms import task_of
from experiments.environment import find_device
from experiments.executor import Executor
from experiments.frozen import frozen_environment
from experiments.plan import Run
from experiments.prepare import Comparison, compare
from experiments.requests import AbRequest
from experiments.tasks import TaskResult


def sample(executor: Executor, of: Comparison, run: Run) -> TaskResult:
    result = executor.run(task_of(of.spec, run)).result
    if result.measurement is None:
        raise SystemExit(f"{run.arm} {result.failure}: {result.message}\n{result.traceback}")
    return result


def log_ratios(executor: Executor, of: Comparison, arms: tuple[str, str], pairs: int) -> Any:
    """Per axis the signed log ratios of all pairs, and seconds per process."""
    ratios: dict[str, list[float]] = {axis.name: [] for axis in axes(of)}
    seconds = []
    for pair in range(pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        values: dict[int, Mapping[str, float]] = {}
        for position, side in enumerate(order):
            run = Run(pair=pair, arm=arms[side], position=position)  # type: ignore[arg-type]
            result = sample(executor, of, run)
            assert result.measurement is not None
            values[side] = result.measurement.values
            seconds.append((result.start_s, result.warmup_s, result.measured_s))
        for axis in axes(of):
            ratio = math.log(values[1][axis.name] / values[0][axis.name])
            ratios[axis.name].append(axis.sign * ratio)
        if pair % 4 == 3:
            executor.new_block()
    return ratios, [statistics.fmean(column) for column in zip(*seconds, strict=True)]


def axes(of: Comparison) -> Any:
    return of.workload.axes(of.spec.parameters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cand", default="auto")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--set", action="append", type=assignment, default=[], metavar="NAME=VALUE")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    settings = dict(asked.set)
    request = AbRequest(lever="fa2_nsplits_cap", cand=asked.cand, settings=settings, seed=1)
    of = compare(request, find_device(asked.device))
    base = frozen_environment(
        of.spec,
        of.device,
        of.workload.opener,
        environ=os.environ,
        free_memory_bytes=psutil.virtual_memory().available,
        cores=os.sched_getaffinity(0),
    )
    with tempfile.TemporaryDirectory() as work, Executor(base, Path(work)) as executor:
        same, _ = log_ratios(executor, of, ("ref", "ref"), asked.pairs)
        executor.new_block()
        other, seconds = log_ratios(executor, of, ("ref", "cand"), asked.pairs)
    rows = []
    print(f"{of.device.facts.kind}: {asked.pairs} pairs, percent of log ratio")
    print(f"{'axis':24}{'A/A mean':>10}{'A/A sd':>9}{'effect':>9}{'sd':>8}")
    for name in same:
        figures = [
            100 * f(x)
            for x in (same[name], other[name])
            for f in (statistics.fmean, statistics.stdev)
        ]
        print(f"{name:24}{figures[0]:10.2f}{figures[1]:9.2f}{figures[2]:9.2f}{figures[3]:8.2f}")
        rows.append({"axis": name, "aa": same[name], "ab": other[name]})
    print("seconds per process: start {:.2f}, warm-up {:.2f}, timed {:.2f}".format(*seconds))
    if asked.out:
        report = {"device": of.device.facts.kind, "cand": asked.cand, "seconds": seconds}
        asked.out.write_text(json.dumps(report | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
