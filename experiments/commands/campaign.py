"""``campaign``: a row of targets with its levers, until it is met or TERMINAL."""

from __future__ import annotations

import dataclasses
import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands import output
from experiments.commands.ab import listening
from experiments.commands.options import AsJson, TokensOn
from experiments.exit_codes import Exit
from experiments.parsing import budget_seconds
from levers.errors import UsageError

if TYPE_CHECKING:
    from experiments.campaign.records import CampaignRow

campaign = typer.Typer(
    help="A row of targets with its levers: list, status, run, close.", rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(help="A campaign's name, or the path of its file.")]


@campaign.callback()
def _group() -> None:
    """Follow a row of targets with all its levers until it is met or TERMINAL."""


@campaign.command("list")
def list_(as_json: AsJson = False) -> int:
    """List the known campaigns with the state of their last row."""
    from experiments.campaign import pipeline

    lines = pipeline.listing()
    if as_json:
        found = [dataclasses.asdict(line) for line in lines]
        output.print_json("campaign list", campaigns=found)
    else:
        from experiments.campaign.render import print_list

        print_list(output.stdout(), lines)
    return Exit.VERDICT


@campaign.command("status")
def status(
    name: Name,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="As Markdown, for a pull request.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the page to a file.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Draw the row again from what is stored and show it; nothing is measured.

    A row that was met or TERMINAL opens by itself when a lever is added, the stack changes, or a
    verdict in it is invalidated; the reason is shown.
    """
    from experiments.campaign import pipeline

    if markdown and as_json:
        raise UsageError("both --markdown and --json", cure="give one of them")
    row = pipeline.status(name)
    _show(row, "campaign status", markdown=markdown, html=html, as_json=as_json)
    return Exit.VERDICT


@campaign.command("run")
def run(
    name: Name,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Limit of the whole run: 10m, 1h30m.")
    ] = None,
    lever_budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Limit of the measuring of each lever.")
    ] = None,
    tokens_on: TokensOn = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Decide a recorded campaign again; touches no device.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the page to a file.")
    ] = None,
    as_json: AsJson = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a long run.")] = False,
) -> int:
    """Measure every open lever, then the binding run, and draw the row.

    What is decided in this scope with the present stack is not measured again; a campaign that was
    interrupted, or killed, goes on where it was. --tokens-on takes the place of the file's list.

    Exit codes: 0 met or TERMINAL, 3 still open, 2 usage, 1 internal, 130 interrupted.
    """
    from experiments.campaign import pipeline
    from experiments.campaign.run import Budgets

    whole_s = budget_seconds(budget) if budget is not None else None
    lever_s = budget_seconds(lever_budget) if lever_budget is not None else None
    with listening(as_json=as_json, ask=not yes) as listener:
        budgets, models = Budgets(whole_s, lever_s), tuple(tokens_on or ())
        row = pipeline.run(name, budgets, listener, replay=replay, tokens_on=models)
    _show(row, "campaign run", markdown=False, html=html, as_json=as_json)
    return Exit.INCONCLUSIVE if row.state == "open" else Exit.VERDICT


@campaign.command("close")
def close(
    name: Name,
    by: Annotated[str, typer.Option("--name", metavar="NAME", help="Who closes it.")] = "",
    as_json: AsJson = False,
) -> int:
    """Close a row that is met or TERMINAL; one with open levers is refused, with the cure."""
    from experiments.campaign import pipeline

    with listening(as_json=as_json, ask=False) as listener:
        row = pipeline.close(name, by or _me(), listener)
    _show(row, "campaign close", markdown=False, html=None, as_json=as_json)
    return Exit.VERDICT


def _me() -> str:
    """The user's name, where the system knows one.

    Raises:
        UsageError: it knows none.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise UsageError(
            f"nobody is known under user id {os.getuid()}", cure="say who closes it with --name"
        ) from error


def _show(
    row: CampaignRow, command: str, *, markdown: bool, html: Path | None, as_json: bool
) -> None:
    """Print a row as text, Markdown or JSON, and write its page where that was asked for."""
    from experiments.campaign import render, reports, view

    if html is not None:
        from experiments.files import write_atomically

        write_atomically(html, reports.page(row))
    if as_json:
        fields = {"name": row.name, "state": row.state, "headline": view.headline(row)}
        output.print_json(command, **fields, row=row.model_dump(mode="json"))
    elif markdown:
        typer.echo(reports.markdown(row), nl=False)
    else:
        render.print_row(output.stdout(), row)
