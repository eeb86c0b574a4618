"""``ab``: measure one lever at two settings and say whether it may ship ON."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from experiments.commands import output
from experiments.commands.options import AsJson, DetailedExit, Expect, Lever
from experiments.exit_codes import exit_code, expected_outcome
from experiments.parsing import budget_seconds, settings
from experiments.requests import AbRequest, Listener, SilentListener


def ab(
    lever: Lever,
    ref: Annotated[str, typer.Option(help="Setting of the reference.")] = "off",
    cand: Annotated[str, typer.Option(help="Setting of the candidate.")] = "auto",
    workload: Annotated[
        str | None, typer.Option(help="What is measured; by default the lever's first.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0 ...")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the workload; repeatable."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="A local model folder.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="A named size of the workload.")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Limit of the measuring: 90s, 3m, 1h30m.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of order and inputs.")] = None,
    oracle: Annotated[
        str | None, typer.Option(help="What targets are held against; none for no target.")
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="At most this many pairs.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with an interrupted run.")
    ] = None,
    as_json: AsJson = False,
    detailed_exitcode: DetailedExit = False,
    expect: Expect = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a long run.")] = False,
) -> int:
    """Compare two settings of a lever: parity first, then speed, then a verdict.

    Exit codes: 0 a verdict, 3 inconclusive, 4 invalid, 2 usage, 1 internal, 130 interrupted.
    """
    wanted = expected_outcome(expect) if expect is not None else None
    request = AbRequest(
        lever=lever,
        ref=ref,
        cand=cand,
        workload=workload,
        device=device,
        settings=settings(set_ or (), model=model, size=size),
        budget_s=budget_seconds(budget) if budget is not None else None,
        seed=seed,
        oracle=oracle,
        max_pairs=pairs,
        resume=resume,
    )
    outcome = _measure(request, as_json=as_json, ask=not yes)
    return exit_code(outcome, detailed=detailed_exitcode, expect=wanted)


def _measure(request: AbRequest, *, as_json: bool, ask: bool) -> str | None:
    """Run the comparison, print it, and give its outcome."""
    from experiments import pipeline

    with _listening(as_json=as_json, ask=ask) as listener:
        record = pipeline.ab(request, listener)
    standing = pipeline.standing(record.run_id)
    if as_json:
        output.print_json("ab", **output.run_fields(record, standing))
    else:
        output.print_run(record, standing)
    return record.decision.outcome.value if record.decision else None


@contextlib.contextmanager
def _listening(*, as_json: bool, ask: bool) -> Iterator[Listener]:
    """A listener for the time of a run; silent where the answer is JSON."""
    if as_json:
        yield SilentListener()
        return
    from experiments.progress import TerminalListener

    person = ask and sys.stdin.isatty() and sys.stderr.isatty()
    listener = TerminalListener(output.stderr(), ask=_confirm if person else None)
    try:
        yield listener
    finally:
        listener.close()


def _confirm(question: str) -> bool:
    return typer.confirm(question, default=True, err=True)
