"""``policy replay``: hold a policy against decisions that people once recorded."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.commands import output
from experiments.commands.options import AsJson
from experiments.exit_codes import Exit
from levers.errors import UsageError

if TYPE_CHECKING:
    from experiments.policy_replay.agreement import ReplayReport


class UnknownState(StrEnum):
    """What an axis counts as whose state was not recorded."""

    WANTED = "wanted"
    IGNORED = "ignored"


policy = typer.Typer(help="Look at policies.", rich_markup_mode=None)


@policy.callback()
def _group() -> None:
    """Hold a policy against recorded decisions."""


@policy.command("replay")
def replay(
    file: Annotated[Path, typer.Argument(help="Recorded decisions, one JSON object a line.")],
    name: Annotated[
        str, typer.Option("--policy", help="default, strict-exact or needs-win.")
    ] = "default",
    unknown_state: Annotated[
        UnknownState, typer.Option(help="What an axis without a recorded state counts as.")
    ] = UnknownState.WANTED,
    min_clear: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Exit with 5 if fewer clear-cut records agree."),
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="Also every record.")] = False,
    as_json: AsJson = False,
) -> int:
    """Decide recorded decisions again and show where the policy agrees with them.

    Exit codes: 0, or 5 where fewer than --min-clear of the clear-cut records are decided as they
    were recorded.
    """
    from experiments import pipeline

    report = pipeline.policy_replay(file, name, unknown_state.value)
    if as_json:
        output.print_json("policy replay", file=str(file), **_fields(report))
    else:
        from experiments.policy_replay.tables import print_replay

        print_replay(output.stdout(), report, details=details)
    return _exit(report, min_clear)


def _fields(report: ReplayReport) -> dict[str, Any]:
    return {
        **dataclasses.asdict(report),
        "table": report.table,
        "clear": len(report.clear),
        "clear_agreed": sum(row.clear_agrees for row in report.clear),
        "clear_share": report.clear_share,
        "opposite": len(report.opposite),
        "opposite_share": report.opposite_share,
        "causes": report.causes,
    }


def _exit(report: ReplayReport, least: float | None) -> Exit:
    """A gate over no clear-cut record would pass without having looked at anything."""
    if least is None:
        return Exit.VERDICT
    share = report.clear_share
    if share is None:
        raise UsageError(
            "--min-clear has nothing to hold: no record is clear-cut",
            cure="give a corpus with parity counts and values of both arms",
        )
    return Exit.VERDICT if share >= least else Exit.UNEXPECTED
