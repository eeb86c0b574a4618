"""``kill -9`` at random moments, then ``--resume``: is a sample lost or counted twice?

Starts ``levergate ab``, kills it at a random moment (also while it starts, checks parity or stores
its verdict), goes on with ``--resume``, kills that, and so on. After each kill: what was on disk is
on disk still, and no measured process outlives its parent. At the end every run is audited: each
run of the plan up to its last pair has exactly one sample, the registry holds the run once and as
the spool has it, and MLflow holds it once, with its arms and one step for each sample.

    python -m benchmarks.kills --stub 190 --real 10 --jobs 2 --out kills.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from experiments import spool_reader
from experiments.registry.store import Registry
from experiments.run_record import RunRecord
from experiments.selftest.run import PLANTED, WORKLOAD

ROOT = Path(__file__).resolve().parents[1]

STUB = (
    *("planted_same", "--cand", "on", "--set", "clock=virtual", "--set", "steps=24"),
    *("--set", "noise=0.3", "--oracle", "slower", "--pairs", "18"),
)
"""So much noise that the plan is measured to its end: the run is killed several times."""

REAL = ("fa2_nsplits_cap", "--cand", "auto")

ORPHAN_GRACE_S = 5.0
"""Seconds within which the processes of a killed parent must have ended."""


@dataclass
class Series:
    """Kills of one kind, in one home.

    Attributes:
        words: the A/B to run.
        home: the levergate home of the series.
        kills: how many kills are wanted.
        span_s: a kill comes at most so long after the start.
        seed: of the moments.
        problems: everything that is not as it should be.
    """

    words: Sequence[str]
    home: Path
    kills: int
    span_s: float
    seed: int = 0
    problems: list[str] = field(default_factory=list)
    killed_with: Counter[str] = field(default_factory=Counter)

    def go(self) -> dict[str, Any]:
        """Kill until there were enough kills, let the last run end, and audit all runs."""
        moments = random.Random(self.seed)
        self.home.mkdir(parents=True, exist_ok=True)
        began, done, run_id = time.monotonic(), 0, ""
        while done < self.kills:
            before = self._on_disk(run_id)
            killed = self._start(run_id, moments.uniform(0.2, self.span_s))
            run_id = run_id or self._unfinished()
            after = self._on_disk(run_id)
            self._nothing_gone(before, after)
            if killed:
                done += 1
                self.killed_with[self._stage(run_id)] += 1
                self._no_orphans()
            run_id = self._unfinished()
        while self._unfinished() or not self._runs():  # on a slow machine none may have begun
            self._start(self._unfinished(), None)
        self._command("sync")
        records = [self._audited(run) for run in self._runs()]
        self._count_in_stores(records)
        return {
            "kills": done,
            "runs": len(records),
            "samples": sum(len(record.samples) for record in records),
            "killed_while": dict(self.killed_with),
            "problems": self.problems,
            "seconds": time.monotonic() - began,
        }

    # --- processes ---------------------------------------------------------------------------

    @property
    def _variables(self) -> dict[str, str]:
        return {
            **os.environ,
            "LEVERGATE_HOME": str(self.home),
            "LEVERGATE_LOCKS": str(self.home / "device-locks"),
            "LEVERGATE_LEVERS": str(PLANTED),
            "LEVERGATE_WORKLOADS": WORKLOAD,
        }

    def _start(self, run_id: str, kill_after_s: float | None) -> bool:
        """Begin or go on; whether it was killed (and did not end before)."""
        words = ["ab", *self.words, "--yes", *(("--resume", run_id) if run_id else ())]
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "cli.py"), *words],
            env=self._variables,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            _, said = process.communicate(timeout=kill_after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return True
        if process.returncode not in (0, 3, 4):
            tail = said.decode(errors="replace").strip().splitlines()[-1:]
            self.problems.append(f"{' '.join(words)} ended with {process.returncode}: {tail}")
            if len(self.problems) > 5:
                raise SystemExit("\n".join(self.problems))
        return False

    def _command(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, str(ROOT / "cli.py"), *words],
            env=self._variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            self.problems.append(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")

    def _no_orphans(self) -> None:
        """Nothing that was started by a killed parent may go on working."""
        end = time.monotonic() + ORPHAN_GRACE_S
        while left := list(self._servers()):
            if time.monotonic() > end:
                self.problems.append(f"processes {left} outlived their parent")
                return
            time.sleep(0.1)

    def _servers(self) -> Iterator[int]:
        for process in psutil.process_iter():
            try:
                mine = process.environ().get("LEVERGATE_HOME") == str(self.home)
                if mine and "experiments.forkserver" in process.cmdline():
                    yield process.pid
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue

    # --- what is on disk ---------------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        return self.home / "runs"

    def _runs(self) -> list[str]:
        return sorted(path.parent.name for path in self._folder.glob(f"*/{spool_reader.HEAD}"))

    def _unfinished(self) -> str:
        """The run that is not decided yet, if there is one."""
        left = [
            run for run in self._runs() if not (self._folder / run / spool_reader.VERDICT).exists()
        ]
        if len(left) > 1:
            self.problems.append(f"more than one run is unfinished: {left}")
        return left[0] if left else ""

    def _on_disk(self, run_id: str) -> list[tuple[int, str]]:
        """The samples in the journal, in order, those of halved pairs left out."""
        if not run_id:
            return []
        record = spool_reader.load(self._folder, run_id).record
        return [(sample.pair, sample.arm) for sample in record.samples]

    def _nothing_gone(
        self, before: Sequence[tuple[int, str]], after: Sequence[tuple[int, str]]
    ) -> None:
        """Only the last sample before a kill may go: its pair had lost its other side."""
        missing = [one for one in before if one not in after]
        if [one for one in missing if one not in before[-1:]]:
            self.problems.append(f"samples {missing} are gone")

    def _stage(self, run_id: str) -> str:
        if not run_id:
            return "before its run had begun"
        if (self._folder / run_id / spool_reader.VERDICT).exists():
            return "while it stored its verdict"
        record = spool_reader.load(self._folder, run_id).record
        if record.samples:
            return "while it measured"
        return "while it checked parity" if record.witnesses else "before its first witness"

    # --- audit -------------------------------------------------------------------------------

    def _audited(self, run_id: str) -> RunRecord:
        """Every run of the plan has one sample, and none is there that was dropped."""
        record = spool_reader.load(self._folder, run_id).record
        counts = Counter((sample.pair, sample.arm) for sample in record.samples)
        doubled = [key for key, count in counts.items() if count > 1]
        pairs = {pair for pair, arm in counts if arm in ("ref", "cand")}
        halves = [pair for pair in pairs if not {(pair, "ref"), (pair, "cand")} <= set(counts)]
        holes = sorted(set(range(max(pairs, default=-1) + 1)) - pairs)
        for what, found in (("doubled", doubled), ("halved", halves), ("missing", holes)):
            if found and not record.failures:
                self.problems.append(f"run {run_id}: {what} {found}")
        self._audit_journal(run_id, counts)
        return record

    def _audit_journal(self, run_id: str, counts: Mapping[tuple[int, str], int]) -> None:
        """Lines of samples less lines of dropped ones are the samples of the record."""
        lines = (self._folder / run_id / spool_reader.JOURNAL).read_text().splitlines()
        written: Counter[tuple[int, str]] = Counter()
        for line in lines:
            entry = json.loads(line)
            if entry["kind"] == "sample":
                written[entry["value"]["pair"], entry["value"]["arm"]] += 1
            elif entry["kind"] == "dropped":
                written[entry["value"]["pair"], entry["value"]["arm"]] -= 1
        if {key: n for key, n in written.items() if n} != dict(counts):
            self.problems.append(f"run {run_id}: the journal's lines are not the record's samples")

    def _count_in_stores(self, records: Sequence[RunRecord]) -> None:
        """Registry and MLflow hold each run once, and as the spool has it."""
        with Registry.open(self.home / "registry.db") as registry:
            rows = Counter(row.run_id for row in registry.history())
            if rows != Counter(record.run_id for record in records):
                self.problems.append(f"the registry's runs are {dict(rows)}")
                return
            for record in records:
                if registry.load(record.run_id).content_digest() != record.content_digest():
                    self.problems.append(f"run {record.run_id} differs in the registry")
        with closing(sqlite3.connect(self.home / "mlflow.db")) as mlflow:
            held = mirrored(mlflow)
            for record in records:
                found = held.pop(record.run_id, {})
                wanted = dict(Counter(sample.arm for sample in record.samples))
                arms = {arm: n for arm, n in found.items() if arm != "ab"}
                if found.get("ab") != 1 or {arm: n for arm, n in arms.items() if n} != wanted:
                    self.problems.append(
                        f"run {record.run_id}: MLflow holds {found}, samples {wanted}"
                    )
            if held:
                self.problems.append(f"MLflow holds runs that nobody made: {sorted(held)}")


def mirrored(mlflow: sqlite3.Connection) -> dict[str, dict[str, int]]:
    """Per run: under ``ab`` the number of parents, under each arm the steps of its wall time.

    An arm that is there twice counts its steps twice.
    """
    query = """
        select run.value, coalesce(arm.value, 'ab'),
               (select count(*) from metrics m
                where m.run_uuid = run.run_uuid and m.key = 'process/wall_s')
        from tags run join runs on runs.run_uuid = run.run_uuid
        left join tags arm on arm.run_uuid = run.run_uuid and arm.key = 'levergate.arm'
        where run.key = 'levergate.run_id' and runs.lifecycle_stage = 'active'
    """
    held: dict[str, dict[str, int]] = {}
    for run_id, role, steps in mlflow.execute(query):
        mine = held.setdefault(run_id, {})
        mine[role] = mine.get(role, 0) + (1 if role == "ab" else steps)
    return held


def run(kind: str, kills: int, span_s: float, jobs: int, seed: int = 1) -> dict[str, Any]:
    """All kills of one kind, shared among homes that are worked on at once."""
    words = STUB if kind == "stub" else REAL
    shares = [kills // jobs + (1 if job < kills % jobs else 0) for job in range(jobs)]
    with tempfile.TemporaryDirectory(prefix="levergate-kills-") as folder:
        series = [
            Series(words, Path(folder) / str(job), share, span_s, seed + job)
            for job, share in enumerate(shares)
            if share
        ]
        with ThreadPoolExecutor(max(1, len(series))) as pool:
            parts = list(pool.map(Series.go, series))
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part["killed_while"])
    return {
        "kind": kind,
        "kills": sum(part["kills"] for part in parts),
        "runs": sum(part["runs"] for part in parts),
        "samples": sum(part["samples"] for part in parts),
        "killed_while": dict(total),
        "problems": [problem for part in parts for problem in part["problems"]],
        "seconds": max((part["seconds"] for part in parts), default=0.0),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stub", type=int, default=190, help="kills on the stub workload")
    parser.add_argument("--real", type=int, default=10, help="kills on the decode workload")
    parser.add_argument("--jobs", type=int, default=2, help="stub runs at once")
    parser.add_argument("--stub-span", type=float, default=14.0, metavar="SECONDS")
    parser.add_argument("--real-span", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    plan = (
        ("stub", asked.stub, asked.stub_span, asked.jobs),
        ("real", asked.real, asked.real_span, 1),
    )
    print(f"{'kind':6}{'kills':>7}{'runs':>6}{'samples':>9}{'problems':>10}{'s':>8}")
    for kind, kills, span_s, jobs in plan:
        if not kills:
            continue
        row = run(kind, kills, span_s, jobs, asked.seed)
        rows.append(row)
        found = len(row["problems"])
        print(
            f"{kind:6}{row['kills']:7}{row['runs']:6}{row['samples']:9}{found:10}{row['seconds']:8.0f}"
        )
        for stage, count in row["killed_while"].items():
            print(f"    {count:4} {stage}")
        for problem in row["problems"]:
            print(f"    PROBLEM {problem}")
    if asked.out:
        asked.out.write_text(json.dumps({"kills": rows}, indent=1) + "\n")
    return 1 if any(row["problems"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
