"""Eight ``levergate ab`` started at once on one fresh directory: do all end rightly?

All eight make the registry, the MLflow store and the folders at the same moment, queue on the one
device, and must each get the verdict of its planted lever; then registry and MLflow hold each once.

    python -m benchmarks.eight --out eight.json
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.kills import mirrored
from experiments.registry.store import Registry
from experiments.selftest.cases import Case, chosen
from experiments.selftest.run import PLANTED, WORKLOAD

ROOT = Path(__file__).resolve().parents[1]

LEVERS = ("noop", "leaky", "one_ulp", "one_row", "nan", "crashing", "fast_3", "memory")
"""Eight cases of the self-test; the last two measure, the others end before."""


def started(case: Case, home: Path) -> subprocess.Popen[str]:
    """The command line of a case, as a user would type it."""
    words = ["ab", case.planted, "--cand", "on", "--workload", "selftest", "--device", "cpu"]
    for name, value in case.parameters.items():
        words += ["--set", f"{name}={value}"]
    variables = {
        "LEVERGATE_HOME": str(home),
        "LEVERGATE_LOCKS": str(home / "device-locks"),
        "LEVERGATE_LEVERS": str(PLANTED),
        "LEVERGATE_WORKLOADS": WORKLOAD,
    }
    return subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *words, "--oracle", case.oracle, "--json", "--yes"],
        env={**os.environ, **variables},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(names: Sequence[str], home: Path) -> dict[str, Any]:
    """Start all at once in a fresh home, wait for all, and audit what they left."""
    cases = chosen(names)
    began = time.monotonic()
    processes = [(case, started(case, home)) for case in cases]
    rows = [row(case, process) for case, process in processes]
    return {
        "runs": rows,
        "problems": [*(one["problem"] for one in rows if one["problem"]), *audit(home, rows)],
        "seconds": time.monotonic() - began,
    }


def row(case: Case, process: subprocess.Popen[str]) -> dict[str, Any]:
    """What one of them got."""
    out, err = process.communicate()
    answer = json.loads(out) if out.strip() else {"outcome": None, "reason": None, "run_id": ""}
    right = (answer["outcome"], answer["reason"]) == (case.outcome, case.reason)
    got = f"{answer['outcome']} {answer['reason']}"
    wanted = f"{case.outcome} {case.reason}"
    return {
        "case": case.name,
        "run_id": answer["run_id"],
        "got": got,
        "exit_code": process.returncode,
        "problem": "" if right else f"{case.name}: {got} instead of {wanted} {err.strip()}",
    }


def audit(home: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """The registry and MLflow hold each run once."""
    wanted = Counter(one["run_id"] for one in rows)
    problems = []
    with Registry.open(home / "registry.db") as registry:
        stored = Counter(one.run_id for one in registry.history())
    if stored != wanted:
        problems.append(f"the registry holds {dict(stored)} instead of {dict(wanted)}")
    with closing(sqlite3.connect(home / "mlflow.db")) as mlflow:
        parents = {run_id: held.get("ab", 0) for run_id, held in mirrored(mlflow).items()}
    if parents != dict(wanted):
        problems.append(f"MLflow holds {parents} instead of {dict(wanted)}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="levergate-eight-") as home:
        result = run(LEVERS, Path(home))
    for one in result["runs"]:
        print(f"{one['case']:16}{one['got']:34}exit code {one['exit_code']}")
    print(f"{len(result['runs'])} at once: {result['seconds']:.0f} s")
    for problem in result["problems"]:
        print(f"PROBLEM {problem}")
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
