"""``calibrate``: how noisy this machine is, and how often it would make a false verdict."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.calibration.requests import DEFAULT_PAIRS, CalibrateRequest
from experiments.commands import output
from experiments.commands.ab import listening
from experiments.commands.options import AsJson
from experiments.exit_codes import Exit
from experiments.parsing import budget_seconds, settings


def calibrate(
    workload: Annotated[
        str | None, typer.Argument(help="What is measured; by default the first workload.")
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="A/A pairs.")] = DEFAULT_PAIRS,
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
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with an interrupted calibration.")
    ] = None,
    as_json: AsJson = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a long run.")] = False,
) -> int:
    """Measure equal arms: this machine's noise and its rate of false verdicts.

    Both arms are the reference without any lever. What is stored is printed beside every later
    verdict of this workload on this machine, and plan reads it.
    """
    request = CalibrateRequest(
        workload=workload,
        device=device,
        settings=settings(set_ or (), model=model, size=size),
        pairs=pairs,
        seed=seed,
        budget_s=budget_seconds(budget) if budget is not None else None,
        resume=resume,
    )
    return _calibrate(request, as_json=as_json, ask=not yes)


def _calibrate(request: CalibrateRequest, *, as_json: bool, ask: bool) -> int:
    from experiments.calibration import pipeline as calibration_pipeline
    from experiments.calibration.run import Uncalibrated
    from experiments.calibration.text import print_calibration

    try:
        with listening(as_json=as_json, ask=ask) as listener:
            found = calibration_pipeline.calibrate(request, listener)
    except Uncalibrated as error:
        if as_json:
            output.print_json("calibrate", calibration=None, reason=str(error))
        typer.echo(f"levergate: {error}", err=True)
        return Exit.INVALID
    if as_json:
        output.print_json("calibrate", calibration=found.model_dump(mode="json"))
    else:
        print_calibration(output.stdout(), found)
    return Exit.VERDICT
