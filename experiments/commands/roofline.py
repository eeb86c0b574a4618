"""``roofline``: where the time of a run goes, in named groups against the measured ceilings."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.commands import output
from experiments.commands.ab import listening
from experiments.commands.options import AsJson
from experiments.exit_codes import Exit


def roofline(
    run: Annotated[str, typer.Argument(help="A run's or stack's id, or a beginning of it.")],
    record: Annotated[
        bool, typer.Option("--record", help="Profile it now, on the device of the run.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Print the profile of a run's candidate, or of a whole stack; --record takes one first.

    One extra process without any timed work runs a few steps under the profiler. Every kernel
    belongs to a named group, and what no group names is shown as "other".
    """
    from experiments.roofline import run as roofline_run

    if record:
        with listening(as_json=as_json, ask=False) as listener:
            run_id, profile = roofline_run.record(run, listener)
    else:
        run_id, profile = roofline_run.profile_of(run)
    if as_json:
        output.print_json("roofline", run_id=run_id, profile=profile.model_dump(mode="json"))
        return Exit.VERDICT
    from experiments.stack.render import print_profile

    print_profile(output.stdout(), run_id, profile)
    return Exit.VERDICT
