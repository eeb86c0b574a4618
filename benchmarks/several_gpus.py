"""The training step on all GPUs of a host: memory, step time, MFU, scaling, communication, A/B.

    python -m benchmarks.several_gpus --out $OUT --levers segment_sum_broadcast=on --limit 560
    python -m benchmarks.several_gpus --out /tmp/out --rehearse --ranks 2      (CPU, gloo, small)

One process for each GPU: DDP and ZeRO-1 around AdamW (with ``--set zero=deepspeed`` DeepSpeed's
engine instead of both), bf16 autocast, every rank with its own samples. Each figure is one fresh
group of processes with the named levers on in it. The largest batch at 0.75 of the device comes
from the line through the peaks that were measured (from a closed form where there are not two) and
is then run. A lever that fails on one rank shows that it is named and that nothing is left running.
At the end ``levergate ab`` decides the whole set of levers (or that of ``--ab-levers``) against the
reference on all GPUs; the run itself is exported as any other.

``OUT/several_gpus.json`` holds what is known after each step, and ``several_gpus.md`` shows it. The
same call goes on from there, and ends with exit code 3 where the time limit came first. Figures of
other levers or settings are not gone on with.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks import failing_rank, whole_stack
from benchmarks.arguments import answered, assignment, natural
from benchmarks.several_gpus_page import page, report
from benchmarks.several_gpus_steps import (
    CLOSED_FORM,
    HEAD,
    PUBLIC,
    REHEARSAL,
    STOPPING_S,
    Point,
    begun_in,
    line,
    measured,
    memory_of,
    row_of,
    visible,
    within,
)
from experiments.environment import cuda_devices, find_device, stack_versions, versions
from experiments.exit_codes import Exit
from experiments.files import write_atomically
from experiments.ranks.needs import packages_of
from experiments.spec import LeverSetting
from experiments.stack.prepare import typed
from experiments.workloads.flow.memory import TARGET_SHARE

SCRATCH = Path(tempfile.gettempdir()) / "levergate-several-gpus"
"""Compile caches, task files and, where LEVERGATE_HOME is not set, the home: none of it a result.
"""

ROOT = Path(__file__).resolve().parents[1]
UNFINISHED = 3
FLOWS = ("slat_flow", "ss_flow")

DECIDED = (Exit.VERDICT, Exit.INCONCLUSIVE, Exit.INVALID)
"""Exit codes of an A/B that came to an end; of any other there is nothing to keep."""

LONGEST_STEP_S = {"cuda": 90.0, "cpu": 25.0}
"""Assumed of a step of this script until one of its kind has been measured."""


@dataclass
class Book:
    """What is known so far, on disk after each step."""

    path: Path
    deadline: float
    found: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, limit_s: float) -> Book:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "several_gpus.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        return cls(path, time.monotonic() + limit_s, found)

    def has(self, name: str) -> bool:
        return name in self.found

    def write(self, name: str, value: Any) -> None:
        self.found[name] = value
        write_atomically(self.path, json.dumps(self.found, indent=1) + "\n")

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def rows(self) -> list[dict[str, Any]]:
        return [one for name, one in self.found.items() if name.startswith("step ")]


def points(options: argparse.Namespace) -> Iterator[Point]:
    """One GPU, then all of them, at each batch."""
    for workload in options.workload:
        for bs in options.bs:
            for ranks in dict.fromkeys((1, *options.between, options.ranks)):
                yield Point(workload, ranks, bs, steps_of(options, workload))


def steps_of(options: argparse.Namespace, workload: str) -> dict[str, str]:
    """The parameters of every point; a dense workload has no profile to choose."""
    base = dict(REHEARSAL if options.rehearse else PUBLIC) | dict(options.set)
    if workload == "ss_flow":
        base = {k: v for k, v in base.items() if k not in ("profile", "tokens")}
        base |= {"grid": "4"} if options.rehearse else {}
    return base


def take(book: Book, point: Point, options: argparse.Namespace) -> dict[str, Any] | None:
    """Measure a point unless it is known; None where the time does not reach."""
    if book.has(point.name):
        found: dict[str, Any] = book.found[point.name]
        return found
    if book.left_s() < (wanted := expected_s(book, point, options)):
        print(
            f"{point.name}: not begun, {book.left_s():.0f} s are left of {wanted:.0f}", flush=True
        )
        return None
    device = find_device(options.device, visible=visible(), ranks=point.ranks)
    result, wall_s = measured(point, options.device, SCRATCH, typed(options.levers))
    row = row_of(point, device, result, wall_s)
    book.write(point.name, row)
    print(line(row, book.rows()), flush=True)
    return row


def expected_s(book: Book, point: Point, options: argparse.Namespace) -> float:
    """A little more than the nearest smaller point took."""
    known = [one["wall_s"] for one in book.rows() if one["workload"] == point.workload]
    default = LONGEST_STEP_S["cpu" if options.device == "cpu" else "cuda"]
    return 1.5 * max(known) if known else default


def take_largest(book: Book, workload: str, options: argparse.Namespace) -> bool:
    """The largest batch for the target share, run; False where the time does not reach.

    One that was found by measured peaks is not looked for again: its own peak would move the line.
    """
    if book.found.get(f"largest {workload}", {}).get("source", CLOSED_FORM) != CLOSED_FORM:
        return True
    device = find_device(options.device, visible=visible(), ranks=options.ranks)
    eight = Point(workload, options.ranks, 8, steps_of(options, workload)).config(device)
    room = device.facts.memory_bytes if device.is_cuda else options.rehearsed_bytes
    known = [
        one for one in book.rows() if (one["workload"], one["ranks"]) == (workload, options.ranks)
    ]
    memory = memory_of(eight, options.ranks, known)
    bs = memory.largest_batch(room)
    row = take(book, Point(workload, options.ranks, bs, steps_of(options, workload)), options)
    if row is None:
        return False
    peak = row.get("values", {}).get("memory/peak_bytes")
    book.write(
        f"largest {workload}",
        {
            "bs": bs,
            "device_bytes": room,
            "target_share": TARGET_SHARE,
            "source": memory.source,
            "expected_share": memory.peak_bytes(bs) / room,
            "measured_share": None if peak is None else peak / room,
            "failure": row["failure"],
        },
    )
    return True


def take_failure(book: Book, options: argparse.Namespace) -> bool:
    """A lever that fails on the second rank: who is named, how soon, and is anything left?"""
    if book.has("failing rank"):
        return True
    if book.left_s() < LONGEST_STEP_S["cpu" if options.device == "cpu" else "cuda"]:
        return False
    failing_rank.plugin(options.out / "levers")
    steps = {**steps_of(options, options.workload[0]), "steps": "2", "warmup": "1"}
    point = Point(options.workload[0], options.ranks, 1, steps, {"depth": "2"})
    levers = (LeverSetting(lever=failing_rank.NAME, setting="on"),)
    result, wall_s = measured(point, options.device, SCRATCH, levers)
    left = [one.pid for one in psutil.Process().children(recursive=True)]
    named = result.message.startswith(f"rank 1 of {options.ranks}: ")
    right = named and failing_rank.MESSAGE in result.message and not left
    book.write(
        "failing rank",
        {"right": right, "message": result.message, "left_running": left, "wall_s": wall_s},
    )
    print(f"a rank that fails: {result.message}; {'as wanted' if right else 'WRONG'}", flush=True)
    return True


def take_verdict(book: Book, options: argparse.Namespace) -> bool:
    """The whole set against the reference, decided by levergate on all GPUs; it resumes a run."""
    if book.has("verdict") or options.no_ab or not options.ab_levers:
        return True
    whole_stack.plugin(options.out / "levers", options.ab_levers)
    settings = {**steps_of(options, options.workload[0]), "bs": str(options.ab_bs)}
    words = [sys.executable, str(ROOT / "cli.py"), "ab", whole_stack.NAME, "--cand", whole_stack.ON]
    words += ["--workload", options.workload[0], "--device", options.device, "--oracle", "none"]
    words += ["--seed", str(whole_stack.SEED)]
    words += ["--ranks", str(options.ranks), "--pairs", str(options.pairs), "--json", "--yes"]
    if options.parity_jobs:
        words += ["--parity-jobs", str(options.parity_jobs)]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    home = Path(os.environ.get("LEVERGATE_HOME") or SCRATCH / "home")
    variables = {**os.environ, "LEVERGATE_HOME": str(home)}
    words += ["--resume", begun] if (begun := begun_in(home)) else []
    if book.left_s() < LONGEST_STEP_S["cpu" if options.device == "cpu" else "cuda"]:
        return False
    done = within(words, variables, book.left_s() - STOPPING_S)
    if done is None:
        return False
    code, out, err = done
    if code not in DECIDED:
        print(f"no verdict, exit code {code}: {out.strip()} {err.strip()}", flush=True)
        return False
    answer = {name: value for name, value in json.loads(out).items() if name != "record"}
    book.write("verdict", {"exit_code": code, "levers": options.ab_levers, **answer})
    print(f"verdict: {answer.get('outcome')} {answer.get('reason')} {err.strip()}", flush=True)
    return True


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "several_gpus")))
    parser.add_argument("--ranks", type=natural, help="all GPUs if not given")
    parser.add_argument(
        "--between", type=natural, nargs="*", default=[], help="ranks between 1 and N"
    )
    parser.add_argument("--workload", nargs="+", default=["slat_flow"], choices=FLOWS)
    parser.add_argument("--bs", type=natural, nargs="+", default=[2, 4, 8])
    parser.add_argument("--levers", default="", metavar="A=ON,B=ON", help="on in every figure")
    parser.add_argument(
        "--ab-levers", default="", metavar="A=ON,B=ON", help="of the A/B, if others"
    )
    parser.add_argument("--set", nargs="*", type=assignment, default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-ab", action="store_true", help="figures alone, no verdict")
    parser.add_argument("--pairs", type=natural, default=6, help="of the A/B")
    parser.add_argument("--parity-jobs", type=int, help="groups of ranks at once in its parity")
    parser.add_argument("--ab-bs", type=natural, default=8, help="batch of the A/B for each GPU")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for this call")
    parser.add_argument("--rehearse", action="store_true", help="CPU, gloo, small")
    parser.add_argument("--rehearsed-bytes", type=int, default=20_000_000, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.out = options.out.resolve()
    options.levers, options.ab_levers = (
        [one for one in text.split(",") if one]
        for text in (options.levers, options.ab_levers or options.levers)
    )
    if dict(options.set).get("profile") == "measured":
        parser.error(
            "profile=measured holds 8 samples, and the largest batch may be larger: "
            "use uniform or lognormal"
        )
    options.device = "cpu" if options.rehearse else "cuda"
    if options.ranks is None:
        options.ranks = 2 if options.rehearse else len(cuda_devices(visible=visible()))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(sys.argv[1:] if arguments is None else arguments)
    os.environ["LEVERGATE_LEVERS"] = str(options.out / "levers")
    (options.out / "levers").mkdir(parents=True, exist_ok=True)
    book = Book.open(options.out, options.limit)
    asked = {"levers": options.levers, "set": dict(options.set)}
    known = {"levers": book.found.get("levers"), "set": book.found.get("set", {})}
    if book.rows() and known != asked:
        print(f"{book.path} has figures of {known}: take another --out")
        return 2
    device = find_device(options.device, visible=visible(), ranks=options.ranks)
    book.write("device", dataclasses.asdict(device.facts) | {"ranks": options.ranks})
    packages = packages_of(asked["set"]) if options.ranks > 1 else ()
    book.write("stack", {**stack_versions(device.driver), **versions(packages)})
    for name, value in asked.items():
        book.write(name, value)
    print(HEAD, flush=True)
    done = all(
        [
            *(take(book, point, options) is not None for point in points(options)),
            *(take_largest(book, workload, options) for workload in options.workload),
            options.ranks == 1 or take_failure(book, options),
            take_verdict(book, options),
        ]
    )
    write_atomically(book.path.with_suffix(".md"), page(book.found))
    print(f"\n{report(book.found)}")
    wrong = book.found.get("failing rank", {}).get("right") is False
    return 1 if wrong else 0 if done else UNFINISHED


if __name__ == "__main__":
    sys.exit(answered("several_gpus", main))
