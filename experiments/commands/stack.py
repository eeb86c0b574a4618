"""``stack``: what each lever of a set adds, measured in one schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands import output
from experiments.commands.ab import listening
from experiments.commands.options import AsJson, TokensOn
from experiments.exit_codes import Exit
from experiments.parsing import budget_seconds, settings
from experiments.stack.requests import DEFAULT_BLOCKS, StackRequest
from levers.errors import UsageError

if TYPE_CHECKING:
    from experiments.stack.records import StackRecord


def stack(
    workload: Annotated[str | None, typer.Argument(help="What is measured.")] = None,
    levers: Annotated[
        str | None,
        typer.Option(
            metavar="A=ON,B=ON",
            help="In the order in which they are added; default-ON ones if not.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0 ...")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the workload; repeatable."),
    ] = None,
    first: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A parameter of the first row; refused where it differs."
        ),
    ] = None,
    published: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE", help='A figure beside a row: "LEVER AXIS=VALUE bs=8"; repeatable.'
        ),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks; each holds every row once.")] = (
        DEFAULT_BLOCKS
    ),
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Limit of the measuring: 90s, 3m, 1h30m.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of order and inputs.")] = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out/--no-leave-one-out", help="The whole without each.")
    ] = True,
    pairs: Annotated[
        bool, typer.Option("--pairs/--no-pairs", help="Levers that share a site: alone and both.")
    ] = True,
    oracle: Annotated[
        str | None, typer.Option(help="An outside implementation that runs in every block too.")
    ] = None,
    tokens_on: TokensOn = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also profile the whole stack (see roofline).")
    ] = False,
    ranks: Annotated[
        int, typer.Option(min=1, help="Processes of each row, each on a device of its own.")
    ] = 1,
    resume: Annotated[
        str | None, typer.Option(metavar="STACK", help="Go on with an interrupted stack.")
    ] = None,
    show: Annotated[
        str | None, typer.Option(metavar="STACK", help="Show a stored one instead of measuring.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the page to a file.")
    ] = None,
    as_json: AsJson = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a long run.")] = False,
) -> int:
    """Add levers one by one and measure what each brings: a table, and no verdict.

    All rows run in fresh processes of one schedule, so that each gain has an interval and none is
    counted twice. Each set of levers passes parity first, or no speed is shown.

    Exit codes: 0 measured, 4 no speed (parity, device), 2 usage, 1 internal, 130 interrupted.
    """
    if show is None and resume is None and workload is None:
        raise UsageError("stack needs a WORKLOAD", cure="such as levergate stack slat_flow")
    if show is not None:
        return show_stack(show, html=html, as_json=as_json, command="stack")
    if resume is not None:
        _refuse_beside_resume(first=first, published=published)
    request = StackRequest(
        workload=workload or "",
        levers=tuple(filter(None, (levers or "").split(","))),
        device=device,
        settings=settings(set_ or ()),
        first=settings(first or ()),
        published=tuple(published or ()),
        blocks=blocks,
        budget_s=budget_seconds(budget) if budget is not None else None,
        seed=seed,
        leave_one_out=leave_one_out,
        pairs=pairs,
        resume=resume,
        profile=profile,
        ranks=ranks,
        oracle=oracle,
        tokens_on=tuple(tokens_on or ()),
    )
    return _measure(request, html=html, as_json=as_json, ask=not yes)


def _refuse_beside_resume(**given: object) -> None:
    """Refuse what cannot even be held against a resumed stack: its record has it in other words.

    Raises:
        UsageError: one of them was given.
    """
    named = [f"--{name}" for name, value in given.items() if value not in (None, [])]
    if named:
        raise UsageError(
            f"a resumed stack keeps what it began with, and {named[0]} could not change it",
            cure=f"leave out {', '.join(named)}, or start a new stack without --resume",
        )


def _measure(request: StackRequest, *, html: Path | None, as_json: bool, ask: bool) -> int:
    from experiments.stack import pipeline as stack_pipeline

    with listening(as_json=as_json, ask=ask) as listener:
        record = stack_pipeline.stack(request, listener)
    _print(record, html=html, as_json=as_json, command="stack")
    return Exit.VERDICT if record.status == "measured" else Exit.INVALID


def show_stack(stack_id: str, *, html: Path | None, as_json: bool, command: str) -> int:
    """Show a stored stack, for ``stack --show`` and for ``show``."""
    from experiments.stack import pipeline as stack_pipeline

    record = stack_pipeline.show(stack_id)
    _print(record, html=html, as_json=as_json, command=command)
    return Exit.VERDICT


def _print(record: StackRecord, *, html: Path | None, as_json: bool, command: str) -> None:
    """Print a stack as text or JSON, and write its page where that was asked for."""
    if html is not None:
        from experiments.files import write_atomically
        from experiments.stack import reports as stack_reports

        write_atomically(html, stack_reports.page(record))
    if as_json:
        fields = {"stack_id": record.stack_id, "status": record.status, "outcome": None}
        output.print_json(command, **fields, record=record.model_dump(mode="json"))
        return
    from experiments.stack.render import print_stack

    print_stack(output.stdout(), record)
