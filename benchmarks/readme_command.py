"""The README command again and again: does it come to a verdict within three minutes?

Each run has a fresh home, so that parity, registry and MLflow are made anew, as on a fresh machine.
With ``--out`` the rows add up over several calls.

    python -m benchmarks.readme_command --times 10 --out readme_command.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
COMMAND = ("ab", "fa2_nsplits_cap", "--ref", "off", "--cand", "auto", "--json")
LIMIT_S = 180.0
GOAL = 0.8
"""Share of the runs that must end with a verdict that was measured, within the limit."""

VERDICTS = ("default-ON", "gated-OFF", "terminal")
NOT_MEASURED = ("parity-failed", "regression")
"""Reasons of a gated-OFF that the planted truth (a faster, lossless cap) makes a mistake here."""


def run() -> dict[str, Any]:
    """One run in a fresh home: seconds from the command to its end, and what it said."""
    with tempfile.TemporaryDirectory(prefix="levergate-readme-") as home:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(ROOT / "cli.py"), *COMMAND],
            env={**os.environ, "LEVERGATE_HOME": home},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
    if not done.stdout.strip():
        return {"outcome": "none", "reason": done.stderr[-300:], "seconds": seconds, "ok": False}
    verdict = json.loads(done.stdout)
    return row(verdict, seconds)


def row(verdict: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What counts of one run's JSON."""
    record = verdict["record"]
    decision, samples = record["decision"], record["samples"]
    outcome, reason = decision["outcome"], decision["reason"]
    measured = outcome in VERDICTS and reason not in NOT_MEASURED
    return {
        "outcome": outcome,
        "reason": reason,
        "pairs": len({s["pair"] for s in samples if s["arm"] == "cand"}),
        "lost": len(record["lost"]),
        "parity_s": record["timing"]["parity_s"],
        "seconds": seconds,
        "ok": measured and seconds <= LIMIT_S,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """One line a run."""
    shown = Table(title=f"{' '.join(COMMAND[:-1])}: a verdict within {LIMIT_S:.0f} s")
    for name in ("run", "verdict", "reason", "pairs", "parity s", "seconds", "counts"):
        shown.add_column(name)
    for index, one in enumerate(rows, start=1):
        shown.add_row(
            str(index),
            one["outcome"],
            one["reason"],
            str(one.get("pairs", "")),
            f"{one.get('parity_s', 0):.0f}",
            f"{one['seconds']:.0f}",
            "yes" if one["ok"] else "no",
        )
    return shown


def main() -> int:
    """Run, print, and say by the exit code whether enough of the runs counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.out is not None and options.out.exists():
        rows = json.loads(options.out.read_text())["runs"]
    for _ in range(options.times):
        rows.append(run())
        if options.out is not None:
            options.out.write_text(json.dumps({"limit_s": LIMIT_S, "runs": rows}, indent=1))
        Console(stderr=True).print(rows[-1])
    Console().print(table(rows))
    good = sum(one["ok"] for one in rows)
    print(f"{good} of {len(rows)} within {LIMIT_S:.0f} s")
    return 0 if good >= GOAL * len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
