"""``show``, ``history``, ``list`` and ``pr``: look at what is stored."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands import output
from experiments.commands.options import AsJson, DetailedExit, Expect, Run
from experiments.exit_codes import Exit, exit_code, expected_outcome
from levers.errors import BadParameter, UnknownName, UsageError

if TYPE_CHECKING:
    from experiments.family.records import FamilyRecord
    from experiments.run_record import RunRecord


def show(
    run: Run,
    as_json: AsJson = False,
    details: Annotated[
        bool, typer.Option("--details", help="Also the paths that ran, and the provenance.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the HTML report to a file.")
    ] = None,
    detailed_exitcode: DetailedExit = False,
    expect: Expect = None,
) -> int:
    """Show a stored run or stack; with --expect or --detailed-exitcode it exits as ab would.

    An invalidated run then ends with 4, whatever its verdict was.
    """
    from experiments import checked, home, naming, pipeline
    from experiments.family import store as family_store

    where = home.find(os.environ, Path.cwd())
    kind = naming.kind_of(where, run)
    if kind == "stack":
        from experiments.commands.stack import show_stack

        if expect is not None or detailed_exitcode:
            raise UsageError(
                f"{run} is a stack: a measurement, no verdict",
                cure="leave out --expect and --detailed-exitcode",
            )
        return show_stack(run, html=html, as_json=as_json, command="show")
    wanted = expected_outcome(expect) if expect is not None else None
    if kind == "selection":
        family = family_store.found(where, run)
        return _show_family(run, family, as_json=as_json, verdict=bool(html or wanted))
    record = pipeline.show(run)
    standing = pipeline.standing(record.run_id)
    if html is not None:
        _write(pipeline.report_html(record, standing), html)
    if as_json:
        output.print_json("show", **output.run_fields(record, standing))
    else:
        output.print_run(record, standing, details=details)
    if wanted is None and not detailed_exitcode:
        return 0
    if checked.stopped(record):
        return Exit.INCONCLUSIVE  # as ab --parity-only: no verdict, and so none but the expected
    outcome = record.decision.outcome.value if record.decision else None
    if outcome is not None and standing.invalidated:
        outcome = "invalid"  # its evidence may not be relied on: no gate may pass on it
    return exit_code(outcome, detailed=detailed_exitcode, expect=wanted)


def _show_family(run: str, family: FamilyRecord | None, *, as_json: bool, verdict: bool) -> int:
    """Print a selection among several settings, which is no verdict.

    Raises:
        UsageError: a page or a verdict of it is asked for, or it has not ended.
    """
    from experiments import order_view
    from experiments.order_render import print_order

    if family is None:
        raise UsageError(
            f"selection {run} has not ended", cure=f"levergate ab LEVER --resume {run} goes on"
        )
    if verdict:
        raise UsageError(
            f"{family.family_id} is a selection, which is no verdict and has no page",
            cure=f"show its winner's run: {family.winner_run or 'it has none'}",
        )
    shown = order_view.of_family(family)
    if as_json:
        selection = {**family.model_dump(mode="json"), "label": shown.label}
        output.print_json("show", outcome=None, selection=selection)
    else:
        print_order(output.stdout(), shown)
    return 0


def _write(text: str, file: Path) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        cure = "name a file that can be written to"
        raise BadParameter(f"cannot write {file}: {error.strerror}", cure=cure) from error


def history(
    lever: Annotated[str | None, typer.Argument(help="A lever's name; all without.")] = None,
    over: Annotated[
        str | None,
        typer.Option(metavar="PARAMETER", help="Does its gain follow its launches over that?"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List the stored runs of a lever, newest first, and the stacks that hold it.

    With --over, instead: where its stored gains differ in one parameter alone, whether the time
    saved falls as the launches that it takes over do; exits with 5 where it does not.
    """
    from experiments import pipeline
    from experiments.commands import stacks
    from experiments.render_tables import print_history

    if over is not None:
        return _doses(lever, over, as_json=as_json)
    rows, lines = pipeline.history(lever), stacks.listed(lever)
    if as_json:
        runs, others = ([dataclasses.asdict(one) for one in found] for found in (rows, lines))
        output.print_json("history", lever=lever, runs=runs, stacks=others)
        return 0
    if rows or not lines:
        print_history(output.stdout(), rows)
    for line in lines:
        typer.echo(stacks.say(line))
    return 0


def _doses(lever: str | None, over: str, *, as_json: bool) -> int:
    """What a lever's gains say over a parameter.

    Raises:
        UsageError: no lever is named.
    """
    from experiments import dose_store

    if lever is None:
        raise UsageError("--over needs a lever", cure=f"levergate history LEVER --over {over}")
    found = dose_store.stored(lever, over)
    if as_json:
        series = [
            {"of": of, "readings": [dataclasses.asdict(one) for one in readings]}
            for of, readings in found
        ]
        output.print_json("history", lever=lever, over=over, series=series)
    else:
        for of, readings in found:
            typer.echo(of)
            for one in readings:
                typer.echo(f"  {one.text}\n  the gain {one.conclusion}")
    follows = all(one.follows for _, readings in found for one in readings)
    return Exit.VERDICT if follows else Exit.UNEXPECTED


def list_(as_json: AsJson = False) -> int:
    """List the known levers with their settings and default states."""
    from experiments import pipeline
    from experiments.render_tables import print_levers

    rows = pipeline.listing()
    if as_json:
        output.print_json("list", levers=[dataclasses.asdict(row) for row in rows])
    else:
        print_levers(output.stdout(), rows)
    return 0


def pr(
    run: Annotated[str | None, typer.Argument(help="A run's id, or a beginning of it.")] = None,
    lever: Annotated[
        str | None, typer.Option(help="Take the latest decided run of this lever.")
    ] = None,
    post: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=1, help="Post to that pull request with gh."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print a verdict as Markdown for a pull request, or post it as one comment that is updated."""
    from experiments import pipeline, render
    from experiments.commands.stacks import runs_alone
    from experiments.view.verdict import view

    with runs_alone(run or ""):
        record = pipeline.show(_chosen(run, lever))
    text = render.markdown(view(record, pipeline.standing(record.run_id)))
    if post is not None:
        return _post(record, text, post, as_json)
    if as_json:
        output.print_json("pr", run_id=record.run_id, markdown=text)
    else:
        typer.echo(text, nl=False)
    return 0


def _chosen(run: str | None, lever: str | None) -> str:
    """The run that ``pr`` is about."""
    from experiments import pipeline

    if (run is None) == (lever is None):
        raise UsageError("pr needs one of RUN and --lever", cure="see levergate history")
    if run is not None:
        return run
    for row in pipeline.history(lever):
        if row.status == "decided":
            return row.run_id
    raise UnknownName("decided run of lever", str(lever), ())


def _post(record: RunRecord, text: str, number: int, as_json: bool) -> int:
    from experiments import github, render

    marker = render.comment_marker(record.spec.lever, record.spec.scope)
    posted = github.post(text, marker, number, Path(f"levergate-{record.run_id}.md"))
    if as_json:
        output.print_json("pr", run_id=record.run_id, markdown=text, **dataclasses.asdict(posted))
    elif posted.problem:
        typer.echo(f"not posted ({posted.problem}); the text is in {posted.file}", err=True)
    else:
        typer.echo(f"{'updated' if posted.updated else 'posted'} {posted.url}")
    return 0
