"""What starting processes costs: a fork server replaced at each block, or a fresh interpreter.

Prints, for each way, the seconds per run spent on waiting for servers, on starting (fork or exec,
imports, building the session), on warm-up and on timed work, and the share of all that is neither
warm-up nor timed work. Then it shows why the next server is not loaded while a sample is timed: the
same samples with an interpreter that imports torch on the other core meanwhile.

    python benchmarks/overhead.py --workload decode --lever fa2_nsplits_cap --out overhead.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.arguments import assignment
from experiments.arms import task_of
from experiments.environment import find_device
from experiments.executor import Executor
from experiments.frozen import FrozenEnvironment, frozen_environment
from experiments.plan import Step
from experiments.prepare import Comparison, compare
from experiments.requests import AbRequest
from experiments.tasks import Task

COLUMNS = ("server_s", "start_s", "warmup_s", "timed_s", "other_s", "wall_s")


def frozen(comparison: Comparison) -> FrozenEnvironment:
    return frozen_environment(
        comparison.spec,
        comparison.device,
        comparison.workload.opener,
        environ=os.environ,
        free_memory_bytes=psutil.virtual_memory().available,
        cores=os.sched_getaffinity(0),
    )


def measure(
    environment: FrozenEnvironment, steps: Sequence[Step], of: Comparison
) -> dict[str, Any]:
    """Seconds per run by where they went, over these steps."""
    totals = dict.fromkeys(COLUMNS, 0.0)
    runs, block, began = 0, steps[0].block, time.monotonic()
    with tempfile.TemporaryDirectory() as work, Executor(environment, Path(work)) as executor:
        for step in steps:
            if step.block != block:
                executor.new_block()
                block = step.block
            for run in step.runs:
                result = executor.run(task_of(of.spec, run)).result
                if result.failure:
                    raise SystemExit(f"{run.arm} {result.failure}: {result.message}")
                totals["start_s"] += result.start_s
                totals["warmup_s"] += result.warmup_s
                totals["timed_s"] += result.measured_s
                runs += 1
        totals["wall_s"] = time.monotonic() - began
        totals["server_s"] = executor.server_s
        way = executor.not_forkable or "fork server"
    known = ("server_s", "start_s", "warmup_s", "timed_s")
    totals["other_s"] = totals["wall_s"] - sum(totals[name] for name in known)
    row: dict[str, Any] = {name: totals[name] / runs for name in COLUMNS}
    row["overhead_share"] = 1 - (totals["warmup_s"] + totals["timed_s"]) / totals["wall_s"]
    return {"way": way, "runs": runs, **row}


def contention(environment: FrozenEnvironment, task: Task, samples: int) -> dict[str, Any]:
    """Log ratio of timed seconds with and without an import of torch on the other core."""
    differences = []
    with tempfile.TemporaryDirectory() as work, Executor(environment, Path(work)) as executor:
        for number in range(samples):
            seconds = {}
            for busy in (number % 2 == 0, number % 2 == 1):
                importing = _importer() if busy else None
                seconds[busy] = executor.run(task).result.measured_s
                if importing is not None:
                    os.killpg(importing.pid, signal.SIGKILL)
                    importing.wait()
            differences.append(math.log(seconds[True] / seconds[False]))
    return {
        "pairs": samples,
        "slowdown": statistics.fmean(differences),
        "sd": statistics.stdev(differences),
    }


def _importer() -> subprocess.Popen[bytes]:
    """A process that imports torch over and over, as servers being loaded would."""
    code = (
        "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-c', 'import torch'])"
    )
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workload", default="decode")
    parser.add_argument("--lever", default="fa2_nsplits_cap")
    parser.add_argument("--cand", default="auto")
    parser.add_argument("--device")
    parser.add_argument("--set", action="append", type=assignment, default=[], metavar="NAME=VALUE")
    parser.add_argument("--pairs", type=int, default=8, help="pairs per way; four are a block")
    parser.add_argument("--contention", type=int, default=6, help="pairs of samples; 0 skips")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    settings = dict(arguments.set)
    request = AbRequest(
        lever=arguments.lever,
        cand=arguments.cand,
        workload=arguments.workload,
        settings=settings,
        seed=1,
        oracle="none",
    )
    of = compare(request, find_device(arguments.device))
    base = frozen(of)
    steps = of.plan.steps[: arguments.pairs]
    fresh = dataclasses.replace(base, fresh_interpreter="fresh interpreter")
    rows = [measure(base, steps, of), measure(fresh, steps, of)]
    print(f"{of.spec.workload} on {of.device.facts.kind}, seconds per run")
    print("way".ljust(20), *(name.rjust(9) for name in COLUMNS), "overhead".rjust(9))
    for row in rows:
        cells = (f"{row[name]:9.3f}" for name in COLUMNS)
        print(row["way"].ljust(20), *cells, f"{row['overhead_share']:9.1%}")
    result: dict[str, Any] = {"workload": of.spec.workload, "ways": rows}
    if arguments.contention:
        task = task_of(of.spec, of.plan.runs[0])
        seen = contention(base, task, arguments.contention)
        result["import_on_the_other_core"] = seen
        print(
            f"timed work while another core imports torch: {seen['slowdown']:+.1%} "
            f"(sd {seen['sd']:.1%}, {seen['pairs']} pairs)"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
