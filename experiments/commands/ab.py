"""``ab``: measure one lever at two settings and say whether it may ship ON."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.candidates import candidates, settings_of
from experiments.commands import ab_options, output
from experiments.commands.options import AsJson, DetailedExit, Expect, Lever, TokensOn
from experiments.exit_codes import exit_code, expected_outcome
from experiments.parsing import budget_seconds, settings
from experiments.requests import AbRequest, Listener

if TYPE_CHECKING:
    from experiments.run_record import RunRecord


class Sequential(StrEnum):
    """How the intervals of the looks are made; chosen before the run and recorded."""

    PLANNED = "group-sequential"
    ANYTIME = "anytime"


def ab(
    lever: Lever,
    ref: Annotated[str, typer.Option(help="Setting of the reference.")] = "off",
    cand: Annotated[
        str | None,
        typer.Option(
            help="Setting of the candidate, or several: auto,1,2 or 1..16; without, auto or the "
            "only one beside off."
        ),
    ] = None,
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
        str | None,
        typer.Option(help="Held against: sdpa, transformers, server:URL ... or none."),
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="At most this many pairs.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with an interrupted run or selection."),
    ] = None,
    sequential: Annotated[
        Sequential, typer.Option(help="Planned looks, or intervals that more pairs may extend.")
    ] = Sequential.PLANNED,
    ranks: Annotated[
        int, typer.Option(min=1, help="Processes of each arm, each on a device of its own.")
    ] = 1,
    parity_jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Parity processes at once: 1 on a CPU, several on a GPU."),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="LEVER=SETTING", help="On in both arms; repeatable."),
    ] = None,
    tokens_on: TokensOn = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also profile the candidate (see roofline).")
    ] = False,
    screen: Annotated[
        bool, typer.Option("--screen", help="Only order the candidates, fast: no verdict.")
    ] = False,
    parity_only: Annotated[
        bool,
        typer.Option(
            "--parity-only", help="Stop before the first sample; --resume RUN measures later."
        ),
    ] = False,
    as_json: AsJson = False,
    detailed_exitcode: DetailedExit = False,
    expect: Expect = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a long run.")] = False,
) -> int:
    """Compare two settings of a lever: parity first, then speed, then a verdict.

    A run of --sequential anytime that ends undecided may go on: --resume RUN with more --pairs.

    Of several candidates losers are dropped early, and the winner is measured again on fresh pairs:
    its verdict alone decides. A screen never is a verdict, and ends with 3 where it could order.

    --parity-only says whether the lever is right: what fails is decided as ever, what passes ends
    with 3, and may be timed later. Nothing is timed, so several may run on one device.

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
        sequential="anytime" if sequential is Sequential.ANYTIME else "group-sequential",
        ranks=ranks,
        parity_jobs=parity_jobs,
        beside=tuple(with_ or ()),
        tokens_on=tuple(tokens_on or ()),
        profile=profile,
        parity_only=parity_only,
    )
    outcome = _run(request, screen=screen, expects=wanted is not None, as_json=as_json, ask=not yes)
    return exit_code(outcome, detailed=detailed_exitcode, expect=wanted)


def _run(
    request: AbRequest, *, screen: bool, expects: bool, as_json: bool, ask: bool
) -> str | None:
    """Choose between one candidate, several, and a screen; gives the outcome.

    Raises:
        UsageError: options that do not go together.
    """
    typed = candidates(request.cand) if request.cand is not None else ()
    ab_options.refuse(request, screen=screen, expects=expects)
    if request.resume is not None and _is_selection(request.resume):
        ab_options.refuse_several(request)
        return _select(request, (), as_json=as_json, ask=ask)
    if request.resume is not None or (len(typed) < 2 and not screen):
        one = typed[0] if typed else None
        return _measure(replace(request, cand=one), as_json=as_json, ask=ask)
    found = settings_of(request, typed)
    if screen:
        return _screen(request, found, as_json=as_json, ask=ask)
    if len(found) == 1:
        return _measure(replace(request, cand=found[0]), as_json=as_json, ask=ask)
    ab_options.refuse_several(request)
    return _select(request, found, as_json=as_json, ask=ask)


def _is_selection(run: str) -> bool:
    """Whether what is to be gone on with is a selection among several settings."""
    from experiments import home, naming

    return naming.kind_of(home.find(os.environ, Path.cwd()), run) == "selection"


def _select(request: AbRequest, found: tuple[str, ...], *, as_json: bool, ask: bool) -> str | None:
    """Choose among several settings, or go on with that; the outcome is the winner's verdict."""
    from experiments import order_view, pipeline, several
    from experiments.order_render import print_order

    with listening(as_json=as_json, ask=ask) as listener:
        family, record = (
            several.ab(request, found, listener) if found else several.resume(request, listener)
        )
        _profile(request, record, listener)
    shown = order_view.of_family(family)
    standing = pipeline.standing(record.run_id) if record is not None else None
    if as_json:
        verdict = output.run_fields(record, standing) if record and standing else {"outcome": None}
        selection = {**family.model_dump(mode="json"), "label": shown.label}
        output.print_json("ab", **verdict, selection=selection)
    else:
        print_order(output.stdout(), shown)
        if record is not None and standing is not None:
            output.print_run(record, standing)
    if record is None:
        return family.outcome
    return record.decision.outcome.value if record.decision else None


def _screen(request: AbRequest, found: tuple[str, ...], *, as_json: bool, ask: bool) -> str:
    """Order the candidates; inconclusive by its nature, invalid where there is no order."""
    from experiments import order_view, several
    from experiments.order_render import print_order

    with listening(as_json=as_json, ask=ask) as listener:
        record = several.screen(request, found, listener)
    shown = order_view.of_screen(record)
    if as_json:
        screen = record.model_dump(mode="json")
        output.print_json("ab", outcome=None, label=shown.label, screen=screen)
    else:
        print_order(output.stdout(), shown)
    return "invalid" if record.failure else "inconclusive"


def _measure(request: AbRequest, *, as_json: bool, ask: bool) -> str | None:
    """Run the comparison, print it, and give its outcome."""
    from experiments import pipeline

    with listening(as_json=as_json, ask=ask) as listener:
        record = pipeline.ab(request, listener)
        _profile(request, record, listener)
    standing = pipeline.standing(record.run_id)
    if as_json:
        output.print_json("ab", **output.run_fields(record, standing))
    else:
        output.print_run(record, standing)
    if record.decision is None and request.parity_only:
        return "inconclusive"
    return record.decision.outcome.value if record.decision else None


def _profile(request: AbRequest, record: RunRecord | None, listener: Listener) -> None:
    """Profile the candidate of a run, where that was asked for and it was timed at all."""
    if not request.profile or record is None:
        return
    if not any(sample.arm == "cand" for sample in record.samples):
        listener.on_warning("no profile: the candidate was not timed")
        return
    from experiments.roofline import run as roofline_run

    run_id, _ = roofline_run.record(record.run_id, listener)
    listener.on_stage("profile", f"levergate roofline {run_id} prints it")


@contextlib.contextmanager
def listening(*, as_json: bool, ask: bool) -> Iterator[Listener]:
    """A listener for the time of a measurement; it only warns where the answer is JSON."""
    from experiments.progress import TerminalListener, WarningsOnly

    if as_json:
        yield WarningsOnly(output.stderr())
        return
    person = ask and sys.stdin.isatty() and sys.stderr.isatty()
    listener = TerminalListener(output.stderr(), ask=_confirm if person else None)
    try:
        yield listener
    finally:
        listener.close()


def _confirm(question: str) -> bool:
    return typer.confirm(question, default=True, err=True)
