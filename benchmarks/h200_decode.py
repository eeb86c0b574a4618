"""The decode levers on one H200, in calls of limited time: each goes on where the last one ended.

    python -m benchmarks.h200_decode --out $OUT --limit 560
    python -m benchmarks.h200_decode --out $OUT --only lever.cuda_graph,campaign
    python -m benchmarks.h200_decode --out $OUT --only train,parity
    python -m benchmarks.h200_decode --out /tmp/out --rehearse              (CPU, small)

The steps are in :mod:`benchmarks.h200_decode_steps`; journal, homes, going on and packing are those
of :mod:`benchmarks.h200_calls`, and OUT then holds ``h200_decode.json``, ``.log``, ``.tar.gz`` and
``.state.tar.gz``. Two calls on two GPUs of a host have each a ``--state`` of its own; through
``--shared`` they see each other's trained weights, bundles and kept parity, so that the campaign
takes in what either has decided. ``parity`` checks all levers of the row at once and times none;
their own steps go on with the samples. Exit code 3: something is left to do; Ctrl-C and SIGTERM
end a call as its limit does.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.h200_calls import Driver, chosen, listed, say
from benchmarks.h200_decode_rehearsal import REHEARSAL, rehearsed_campaign
from benchmarks.h200_decode_steps import FULL, steps
from benchmarks.h200_journal import Journal
from benchmarks.h200_training_packing import restore

NAME = "h200_decode"


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", NAME)))
    parser.add_argument("--state", type=Path, help="kept between calls; by default below /tmp")
    parser.add_argument("--shared", type=Path, help="of all calls on a host; by default below /tmp")
    parser.add_argument("--restore", type=Path, help="a packed state, where --state has none")
    parser.add_argument("--limit", type=float, default=560.0, help="seconds for this call")
    parser.add_argument("--only", default="", metavar="ITEM,STEP", help="these, in this order")
    parser.add_argument("--again", default="", metavar="STEP", help="run it although it is done")
    parser.add_argument("--list", action="store_true", help="what would be run, and nothing else")
    parser.add_argument("--rehearse", action="store_true", help="CPU, small")
    options = parser.parse_args(arguments)
    place = f"levergate-{NAME}-{'rehearsal' if options.rehearse else 'full'}"
    options.state = options.state or Path(tempfile.gettempdir()) / place
    options.shared = options.shared or Path(tempfile.gettempdir()) / f"{place}-shared"
    for name in ("out", "state", "shared"):
        setattr(options, name, getattr(options, name).resolve())
    for name in ("only", "again"):
        words = tuple(one for one in getattr(options, name).split(",") if one)
        setattr(options, name, words)
    return options


def prepare_campaign(driver: Driver) -> None:
    """The rehearsal's campaign, in the home of its step."""
    step = next(one for one in steps(REHEARSAL) if one.kind == "campaign")
    folder = driver.home(step) / "campaigns"
    folder.mkdir(exist_ok=True)
    (folder / f"{REHEARSAL.campaign}.toml").write_text(rehearsed_campaign(REHEARSAL))


def main(arguments: Sequence[str] | None = None) -> int:
    began = time.monotonic()
    options = parsed(sys.argv[1:] if arguments is None else arguments)
    scale = REHEARSAL if options.rehearse else FULL
    every = steps(scale)
    wanted = [one for name in options.only for one in chosen(every, [name])] or list(every)
    for folder in (options.out, options.state, options.state / "homes", options.shared):
        folder.mkdir(parents=True, exist_ok=True)
    if options.restore:
        say(restore(options.restore, options.state))
    journal = Journal.open(options.state)
    journal.forget(options.again)
    if options.list:
        listed(wanted, journal)
        return 0
    deadline = began + options.limit
    driver = Driver(
        options.state, options.out, deadline, scale.device, journal, NAME, shared=options.shared
    )
    if options.rehearse:
        prepare_campaign(driver)
    return driver.carry_out(wanted)


if __name__ == "__main__":
    sys.exit(main())
