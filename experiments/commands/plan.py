"""``plan``: how many pairs and minutes a verdict will take, before a run."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from experiments.calibration.requests import PlanRequest
from experiments.commands import output
from experiments.commands.options import AsJson, Lever
from experiments.exit_codes import Exit
from experiments.parsing import effect_ratio, settings


def plan(
    lever: Lever,
    effect: Annotated[str, typer.Option(metavar="PERCENT", help="The assumed gain.")] = "2%",
    on: Annotated[
        str, typer.Option(metavar="PATTERN", help="Primary axes that have it; all by default.")
    ] = "*",
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
    oracle: Annotated[
        str | None,
        typer.Option(help="Held against: sdpa, transformers, server:URL ... or none."),
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="At most this many pairs.")] = None,
    as_json: AsJson = False,
) -> int:
    """Say beforehand what a verdict will take: pairs, minutes, power, the cost of the guards.

    The noise is that of the last calibration of this workload on this machine, or of its last runs.
    """
    from experiments.calibration import pipeline as calibration_pipeline
    from experiments.calibration.text import print_plan

    request = PlanRequest(
        lever=lever,
        effect=effect_ratio(effect),
        on=on,
        workload=workload,
        device=device,
        settings=settings(set_ or (), model=model, size=size),
        oracle=oracle,
        max_pairs=pairs,
    )
    found = calibration_pipeline.plan(request)
    if as_json:
        output.print_json("plan", **dataclasses.asdict(found))
    else:
        print_plan(output.stdout(), found)
    return Exit.VERDICT
