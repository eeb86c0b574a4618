"""The self-test's table: what each planted lever must get, and what it got."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.selftest.run import Result


def print_results(console: Console, results: Sequence[Result]) -> None:
    """Print one row a case, then the count."""
    table = Table(box=None, pad_edge=False)
    for heading in ("case", "expected", "got", "pairs", "s"):
        table.add_column(heading, justify="right" if heading in ("pairs", "s") else "left")
    for result in results:
        table.add_row(
            result.case.name,
            f"{result.case.outcome} {result.case.reason}",
            Text(_got(result), style="" if result.right else "bold red"),
            str(result.pairs or ""),
            f"{result.seconds:.1f}",
        )
    console.print(table)
    for result in results:
        if not result.right:
            console.print(Text(f"{result.case.name}: {result.problem}", style="red"))
    if any(result.tries > 1 for result in results):
        console.print("a case is tried again where the machine was disturbed by something else")
    right = sum(result.right for result in results)
    seconds = sum(result.seconds for result in results)
    console.print(f"{right} of {len(results)} right, {seconds:.0f} s")


def _got(result: Result) -> str:
    got = f"{result.outcome} {result.reason}"
    again = "" if result.tries == 1 else f", try {result.tries}"
    return f"{got}{again}" if result.right else f"{got}{again}  WRONG"
