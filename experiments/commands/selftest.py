"""``selftest``: planted levers through the whole pipeline, each with the verdict it must get."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands import output
from experiments.commands.options import AsJson
from experiments.exit_codes import Exit
from levers.errors import UsageError

if TYPE_CHECKING:
    from experiments.selftest.run import Result

LARGEST_SLOWDOWN = 90
"""Percent."""


def selftest(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run this case; repeatable.")
    ] = None,
    inject_slowdown: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Slow the levers that ship ON: must turn red."),
    ] = None,
    inject_wrong_output: Annotated[
        bool,
        typer.Option("--inject-wrong-output", help="Spoil the levers that ship ON: turns red."),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Prove on this machine that planted faults are found: about three minutes on two cores.

    Exit codes: 0 where every planted lever got its outcome and reason, else 1.
    """
    from experiments.selftest import cases, run

    setting = _setting(inject_slowdown, wrong=inject_wrong_output)
    names = only or ()
    chosen = cases.chosen(names) if setting == run.AS_PLANTED else cases.injectable(names)
    results = run.run(chosen, setting, _quiet if as_json else _progress)
    right = all(result.right for result in results)
    if as_json:
        rows = [_fields(result) for result in results]
        output.print_json("selftest", setting=setting, right=right, cases=rows)
    else:
        from experiments.selftest.table import print_results

        print_results(output.stdout(), results)
    return Exit.VERDICT if right else Exit.INTERNAL


def _setting(slowdown: str | None, *, wrong: bool) -> str:
    """The candidate's setting: as planted, slowed by a percentage, or spoilt."""
    if slowdown is not None and wrong:
        raise UsageError("two faults at once", cure="inject a slowdown or a wrong output")
    if wrong:
        return "wrong"
    if slowdown is None:
        return "on"
    found = re.fullmatch(r"(\d+)\s*%?", slowdown.strip())
    if found is None or not 1 <= int(found[1]) <= LARGEST_SLOWDOWN:
        raise UsageError(
            f"--inject-slowdown {slowdown!r} is no percentage",
            cure=f"write 1% to {LARGEST_SLOWDOWN}%",
        )
    return found[1]


def _fields(result: Result) -> dict[str, object]:
    return {**dataclasses.asdict(result), "right": result.right}


def _quiet(_: Result) -> None:
    """The answer is JSON alone."""


def _progress(result: Result) -> None:
    mark = "ok  " if result.right else "FAIL"
    got = f"{result.outcome} {result.reason}"
    print(f"{mark} {result.case.name:<16} {got:<34} {result.seconds:5.1f} s", file=sys.stderr)
