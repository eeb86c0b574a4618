"""``export``, ``import``, ``replay``, ``sync`` and ``ui``: evidence, and the MLflow mirror."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.commands import output
from experiments.commands.options import AsJson, Run
from experiments.exit_codes import Exit
from levers.errors import StoreError, UsageError

if TYPE_CHECKING:
    from experiments.records import Decision
    from experiments.requests import ImportRow


def export(
    run: Run,
    file: Annotated[Path, typer.Argument(help="The bundle, or a folder for it.")],
    as_json: AsJson = False,
) -> int:
    """Write a run or a stack with all its evidence to one file."""
    from experiments import home, naming

    if naming.kind_of(home.find(os.environ, Path.cwd()), run) == "stack":
        from experiments.stack import pipeline as stack_pipeline

        written = stack_pipeline.export(run, file)
    else:
        from experiments import pipeline

        written = pipeline.export(run, file)
    if as_json:
        output.print_json("export", run=run, file=str(written))
    else:
        typer.echo(f"wrote {written}")
    return 0


def import_(
    files: Annotated[list[Path], typer.Argument(help="Evidence bundles; twice does no harm.")],
    as_json: AsJson = False,
) -> int:
    """Take evidence bundles of runs and stacks into the registry and MLflow."""
    from experiments import pipeline
    from experiments.stack import store as stack_store

    rows: list[ImportRow] = []
    try:
        heard = rows.append if as_json else _say_import
        of_stacks = [file for file in files if stack_store.is_bundle(file)]
        for file in of_stacks:
            heard(_import_stack(file))
        if len(of_stacks) < len(files):
            pipeline.import_bundles([file for file in files if file not in of_stacks], heard)
    finally:  # what is in is said, also where a later bundle is not
        if as_json and rows:
            output.print_json("import", bundles=[dataclasses.asdict(row) for row in rows])
    return 0


def _import_stack(file: Path) -> ImportRow:
    """Take in the bundle of a stack; what MLflow lacks is said on stderr."""
    from experiments.stack import pipeline as stack_pipeline

    row, problem = stack_pipeline.import_bundle(file)
    if problem:
        typer.echo(f"! {problem}", err=True)
    return row


def _say_import(row: ImportRow) -> None:
    done = "took in" if row.new else "updated" if row.updated else "already there:"
    typer.echo(f"{done} {row.run_id} from {row.path}")


WORDING = ("detail", "notes")
"""Fields of a decision that explain it and decide nothing."""


def replay(run: Run, as_json: AsJson = False) -> int:
    """Decide a stored run again from its record; exits with 5 where the decision differs.

    How the decision is worded may change between versions and is not compared.
    """
    from experiments import pipeline
    from experiments.commands.stacks import runs_alone

    with runs_alone(run):
        stored, again = pipeline.replay(run)
    if stored is None:
        raise UsageError(f"run {run} was never decided", cure=f"levergate ab ... --resume {run}")
    same = not _changed(stored, again)
    if as_json:
        answer = {"same": same, "stored": _dump(stored), "again": _dump(again)}
        output.print_json("replay", run=run, **answer)
    else:
        typer.echo(f"stored: {_say(stored)}\nagain:  {_say(again)}")
        typer.echo(
            "the same decision" if same else f"DIFFERENT in {', '.join(_changed(stored, again))}"
        )
    return Exit.VERDICT if same else Exit.UNEXPECTED


def _dump(decision: Decision) -> dict[str, Any]:
    return decision.model_dump(mode="json")


def _say(decision: Decision) -> str:
    axes = f": {', '.join(decision.axes)}" if decision.axes else ""
    return f"{decision.outcome.value} ({decision.reason}{axes})"


def _changed(stored: Decision, again: Decision) -> list[str]:
    old, new = _dump(stored), _dump(again)
    return [name for name in old if name not in WORDING and old[name] != new[name]]


def sync(as_json: AsJson = False) -> int:
    """Bring to MLflow every stored run, stack and reported row of a campaign that it lacks."""
    from experiments import pipeline
    from experiments.commands import stacks

    report = stacks.with_campaigns(stacks.with_stacks(pipeline.sync()))
    if as_json:
        output.print_json("sync", **dataclasses.asdict(report))
    else:
        typer.echo(f"mirrored {len(report.mirrored)}, waiting {len(report.waiting)}")
    if report.waiting:
        raise StoreError(
            f"{len(report.waiting)} runs, stacks or rows still wait for MLflow: {report.reason}",
            cure="nothing is lost; start or repair the store, then levergate sync",
        )
    return 0


def ui(port: Annotated[int, typer.Option(min=1, max=65535, help="Local port.")] = 5000) -> int:
    """Start the MLflow pages on the right store."""
    from experiments import pipeline

    pipeline.ui(port)
    return 0
