"""The self-test several times in a row: every planted lever must get its verdict each time.

python benchmarks/selftest.py --times 10 --out selftest.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from experiments.selftest import cases
from experiments.selftest.run import Result, run


def show(result: Result) -> None:
    """One line for a result that is not right."""
    if not result.right:
        got = f"{result.outcome} {result.reason}"
        print(f"  WRONG {result.case.name}: {got}: {result.problem}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    chosen, rounds = cases.chosen(asked.only), []
    for number in range(1, asked.times + 1):
        began = time.monotonic()
        results = run(chosen, on_result=show)
        seconds = time.monotonic() - began
        right = sum(result.right for result in results)
        again = sum(result.tries - 1 for result in results)
        print(
            f"{number:3}: {right} of {len(results)} right, {again} run again on a disturbed "
            f"machine, {seconds:.0f} s",
            flush=True,
        )
        rows = [
            {
                "case": one.case.name,
                "got": f"{one.outcome} {one.reason}",
                "right": one.right,
                "problem": one.problem,
                "pairs": one.pairs,
                "seconds": one.seconds,
                "tries": one.tries,
            }
            for one in results
        ]
        rounds.append({"seconds": seconds, "right": right, "cases": rows})
        if asked.out:
            asked.out.write_text(json.dumps({"rounds": rounds}, indent=1) + "\n")
    return 0 if all(one["right"] == len(chosen) for one in rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
