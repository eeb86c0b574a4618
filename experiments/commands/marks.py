"""``invalidate`` and ``override``: a person's word beside a verdict, with a name and a reason."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands import output
from experiments.commands.options import AsJson, Lever
from experiments.requests import OverrideRequest, SyncReport

if TYPE_CHECKING:
    from experiments.marking import Invalidated, Overridden

Name = Annotated[str, typer.Option(metavar="NAME", help="Who says so; shown with the verdict.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; shown with the verdict.")]


class OverrideTo(StrEnum):
    """What an override puts in force; ``as-decided`` withdraws an earlier one."""

    ON = "on"
    OFF = "off"
    AS_DECIDED = "as-decided"


def invalidate(
    runs: Annotated[list[str], typer.Argument(help="Ids of runs, or beginnings of them.")],
    name: Name = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> int:
    """Mark runs as no longer valid, with all that was decided from them.

    A bug was found in a check, an oracle or a lever: the default states are drawn again from the
    evidence that stands. Nothing is deleted; the mark shows wherever the verdict does.
    """
    from experiments import pipeline
    from experiments.commands.stacks import runs_alone

    with runs_alone(*runs):
        found = pipeline.invalidate(runs, reason=reason, name=name)
    if as_json:
        done = found.done.model_dump(mode="json")
        output.print_json("invalidate", **done, mirror=dataclasses.asdict(found.mirror))
    else:
        _print_invalidated(found)
    return 0


def _print_invalidated(found: Invalidated) -> None:
    done = found.done
    for run in done.runs:
        kept = " already was, and keeps the reason given then" if run in done.already else ""
        why = ": it rests on a check of the runs named" if run in done.dependents else ""
        typer.echo(f"invalidated {run}{kept}{why}")
    for scope, before, after in done.changed:
        typer.echo(f"default state {before} -> {after}: {scope}")
    if done.measured_with:
        typer.echo(f"measured with a lever whose state changed: {', '.join(done.measured_with)}")
    _print_mirror(found.mirror)


def override(
    lever: Lever,
    state: Annotated[OverrideTo, typer.Option(help="What ships in this scope.")],
    workload: Annotated[str | None, typer.Option(help="The workload of the verdict.")] = None,
    setting: Annotated[str | None, typer.Option(help="The lever's setting in the verdict.")] = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Take the scope of this run's verdict.")
    ] = None,
    name: Name = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> int:
    """Put a person's word over the verdict of one scope; the verdict stays and shows it."""
    from experiments import pipeline

    asked = OverrideRequest(lever, state.value, name, reason, workload, setting, run)
    found = pipeline.override(asked)
    if as_json:
        said = found.state.model_dump(mode="json")
        output.print_json("override", state=said, mirror=dataclasses.asdict(found.mirror))
    else:
        _print_overridden(found)
    return 0


def _print_overridden(found: Overridden) -> None:
    state = found.state
    typer.echo(f"default state {state.label_beside}, ships {state.ships!r}: {state.scope}")
    for flag, note in zip(state.flags, state.notes, strict=True):
        typer.echo(f"- {flag}: {note}")
    _print_mirror(found.mirror)


def _print_mirror(mirror: SyncReport) -> None:
    """A mirror that is down costs a line; the mark itself is stored."""
    if mirror.waiting:
        said = f"MLflow does not show it yet ({mirror.reason}); levergate sync will"
        typer.echo(f"levergate: {said}", err=True)
    elif mirror.mirrored:
        typer.echo(f"MLflow pages renewed: {len(mirror.mirrored)}")
