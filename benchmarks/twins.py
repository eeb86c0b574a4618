"""Planted twins of ``fa2_nsplits_cap``: does the same command give each the verdict it deserves?

Each twin is the real lever with a planted difference, on the decode workload with redundant work
after each step: one leaves that work out (20 % faster on axes that miss their target, exact), one
does more of it (20 % slower), one gives wrong tokens. The command is the one of the README, ``ab
TWIN --ref off --cand auto``, with the same defaults.

    python -m benchmarks.twins --out twins.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXPECTED = {
    "fa2_nsplits_cap_wrong": [("gated-OFF", "parity-failed")],
    "fa2_nsplits_cap_slow": [("gated-OFF", "regression"), ("gated-OFF", "slower")],
    "fa2_nsplits_cap_fast": [("default-ON", "failing-axis-win")],
}
SHORT = (
    *("--set", "concurrency=1", "--set", "prompt_tokens=384"),
    *("--set", "rounds=4", "--set", "output_tokens=20"),
)
"""A shortened form for tests: one concurrency, short prompts, and less than half of the work."""


def verdict(lever: str, home: Path, options: Sequence[str]) -> dict[str, Any]:
    """Run the command for a lever and say what it got."""
    variables = {
        "LEVERGATE_HOME": str(home),
        "LEVERGATE_LEVERS": str(ROOT / "benchmarks" / "twin_levers"),
        "LEVERGATE_WORKLOADS": "decode_twin=benchmarks.twin_decode:TWIN",
    }
    words = ["ab", lever, "--ref", "off", "--cand", "auto", *options, "--json", "--yes"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *words],
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    if not done.stdout.strip():
        raise SystemExit(f"{lever}: exit code {done.returncode}: {done.stderr}")
    answer = json.loads(done.stdout)
    look = (answer["record"]["looks"] or [{"pairs": 0, "effects": []}])[-1]
    return {
        "lever": lever,
        "outcome": answer["outcome"],
        "reason": answer["reason"],
        "right": (answer["outcome"], answer["reason"]) in EXPECTED[lever],
        "headline": answer["headline"],
        "detail": answer["record"]["decision"]["detail"],
        "pairs": look["pairs"],
        "effects": {one["axis"]: one["estimate"] for one in look["effects"]},
        "seconds": seconds,
    }


def run(
    levers: Sequence[str], options: Sequence[str] = (), out: Path | None = None
) -> list[dict[str, Any]]:
    """One verdict a lever, each in a home of its own; written out as it comes."""
    rows = []
    for lever in levers:
        with tempfile.TemporaryDirectory(prefix="levergate-twins-") as home:
            rows.append(verdict(lever, Path(home), options))
        row = rows[-1]
        mark = "ok  " if row["right"] else "FAIL"
        got = f"{row['outcome']} {row['reason']}"
        print(f"{mark} {lever:24}{got:32}{row['pairs']:4} pairs{row['seconds']:7.0f} s", flush=True)
        if out:
            out.write_text(json.dumps({"twins": rows}, indent=1) + "\n")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(EXPECTED))
    parser.add_argument("--short", action="store_true", help="the form of the test")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = run(asked.only or list(EXPECTED), SHORT if asked.short else (), asked.out)
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
