"""How long the commands that only look take, from the start of the process to its end.

``--help``, ``list``, ``show`` and ``history`` run in turn, so that a slow moment of the machine
meets all of them, on a home that holds the runs of the given bundles. Two rows say what the time is
made of: a bare interpreter, and one that imports SQLAlchemy, without which no stored run is read.

    python benchmarks/startup.py docs/results --repeats 10 --out startup.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import bundles
from experiments.home import HOME_VARIABLE
from experiments.registry.store import Registry

ROOT = Path(__file__).resolve().parents[1]
GOALS_S = {"--help": 0.4, "list": 0.8, "show": 0.8}
"""Seconds; the other rows have no goal."""


def is_bundle(file: Path) -> bool:
    return json.loads(file.read_text(encoding="utf-8")).get("format") == bundles.FORMAT


def taken_in(home: Path, files: Sequence[Path]) -> str:
    """Store the bundles in a home of their own, without MLflow; the id of the last run."""
    with Registry.open(home / "registry.db") as registry:
        return [bundles.import_bundle(registry, path)[0].run_id for path in files][-1]


def seconds(arguments: Sequence[str], variables: Mapping[str, str]) -> float:
    """The wall time of one process, which must end well."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


def measured(home: Path, run: str, repeats: int) -> dict[str, list[float]]:
    """All repeats of each command; one round before them warms the caches of the file system."""
    commands = {
        "--help": ("cli.py", "--help"),
        "list": ("cli.py", "list"),
        "show": ("cli.py", "show", run),
        "history": ("cli.py", "history"),
        "python": ("-c", "pass"),
        "import sqlalchemy": ("-c", "import sqlalchemy"),
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(repeats + 1):
        for name, words in commands.items():
            took = seconds(words, {HOME_VARIABLE: str(home)})
            if number:
                found[name].append(took)
    return found


def rows(found: Mapping[str, Sequence[float]]) -> list[dict[str, object]]:
    return [
        {
            "command": name,
            "median_s": round(statistics.median(times), 3),
            "max_s": round(max(times), 3),
            "min_s": round(min(times), 3),
            "goal_s": GOALS_S.get(name),
        }
        for name, times in found.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the bundles lie")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    files = [file for file in sorted(asked.folder.rglob("*.json")) if is_bundle(file)]
    if not files:
        parser.error(f"no bundle in {asked.folder}")
    with tempfile.TemporaryDirectory() as home:
        table = rows(measured(Path(home), taken_in(Path(home), files), asked.repeats))
    print(f"{len(files)} runs stored, {asked.repeats} repeats; seconds")
    print(f"{'command':<20}{'median':>8}{'max':>8}{'min':>8}{'goal':>8}")
    for row in table:
        figures = "".join(f"{row[key]:>8.3f}" for key in ("median_s", "max_s", "min_s"))
        print(f"{row['command']:<20}{figures}{row['goal_s'] or '-':>8}")
    if asked.out is not None:
        asked.out.write_text(json.dumps({"runs": len(files), "rows": table}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
