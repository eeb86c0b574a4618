"""The training levers on one H200, in calls of limited time: each goes on where the last one ended.

    python -m benchmarks.h200_training --out $OUT --limit 560
    python -m benchmarks.h200_training --out $OUT --only levers,ss.look
    python -m benchmarks.h200_training --out /tmp/out --rehearse             (CPU, small)

The steps (:mod:`benchmarks.h200_training_steps`) run in order. One that was finished is not run
again; one that does not fit the rest of the time is begun only if it can go on later, and is then
interrupted at the limit. Each has a home of its own, so that no verdict puts a lever into another
step's arms; parity results and compile caches are shared.

OUT then holds ``h200_training.json`` (all steps), ``.log`` (this call's output), ``.tar.gz``
(bundles) and ``.state.tar.gz``, from which ``--restore`` goes on with on another machine: parity
that passed is found again there, samples are not mixed. Exit code 3: something is left to do;
Ctrl-C and SIGTERM end a call as its limit does.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import whole_stack
from benchmarks.h200_calls import Driver, chosen, listed, say
from benchmarks.h200_journal import Journal
from benchmarks.h200_training_packing import restore
from benchmarks.h200_training_steps import FULL, REHEARSAL, Scale, steps

NAME = "h200_training"


def prepare_sets(state: Path, scale: Scale) -> None:
    """The sets of levers as lever files."""
    folder = state / "levers"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["LEVERGATE_LEVERS"] = str(folder)
    for name, members in scale.named.items():
        whole_stack.plugin(folder, members, name)


def scale_of(options: argparse.Namespace) -> Scale:
    """The rehearsal's or the published size, with other whole sets where they are given."""
    scale = REHEARSAL if options.rehearse else FULL
    given = {"whole": options.whole, "whole_dense": options.whole_dense}
    return dataclasses.replace(scale, **{name: one for name, one in given.items() if one})


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", NAME)))
    parser.add_argument("--state", type=Path, help="kept between calls; by default below /tmp")
    parser.add_argument("--restore", type=Path, help="a packed state, where --state has none")
    parser.add_argument("--limit", type=float, default=560.0, help="seconds for this call")
    parser.add_argument("--only", default="", metavar="ITEM,STEP")
    parser.add_argument("--again", default="", metavar="STEP", help="run it although it is done")
    for name in ("--whole", "--whole-dense"):
        parser.add_argument(name, default="", metavar="A=ON,B=ON", help="another set of all levers")
    parser.add_argument("--list", action="store_true", help="what would be run, and nothing else")
    parser.add_argument("--rehearse", action="store_true", help="CPU, small")
    options = parser.parse_args(arguments)
    scale = "rehearsal" if options.rehearse else "full"
    options.state = options.state or Path(tempfile.gettempdir()) / f"levergate-{NAME}-{scale}"
    options.out, options.state = options.out.resolve(), options.state.resolve()
    for name in ("only", "again", "whole", "whole_dense"):
        words = tuple(one for one in getattr(options, name).split(",") if one)
        setattr(options, name, words)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    began = time.monotonic()
    options = parsed(sys.argv[1:] if arguments is None else arguments)
    scale = scale_of(options)
    wanted = chosen(steps(scale), options.only)
    options.out.mkdir(parents=True, exist_ok=True)
    options.state.mkdir(parents=True, exist_ok=True)
    if options.restore:
        say(restore(options.restore, options.state))
    journal = Journal.open(options.state)
    journal.forget(options.again)
    if options.list:
        listed(wanted, journal)
        return 0
    prepare_sets(options.state, scale)
    deadline = began + options.limit
    driver = Driver(options.state, options.out, deadline, scale.device, journal, NAME)
    return driver.carry_out(wanted)


if __name__ == "__main__":
    sys.exit(main())
