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
that passed is found again there, samples are not mixed. Exit code 3: something is left to do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import whole_stack
from benchmarks.h200_training_evidence import evidence_of, export, unfinished
from benchmarks.h200_training_packing import STOPPING_S, archive, restore, within
from benchmarks.h200_training_steps import FULL, REHEARSAL, RUN, Scale, Step, steps
from experiments.exit_codes import Exit
from experiments.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
NAME = "h200_training"
LEFT = 3
DONE = (Exit.VERDICT, Exit.INCONCLUSIVE, Exit.INVALID)

PACKING_S = 12.0
"""Kept free at the end of a call for bundles and state."""

LEAST_S = {"cuda:0": 60.0, "cpu": 10.0}
"""Nothing that can go on later is begun for less."""


@dataclass
class Journal:
    """What is known of each step, on disk after each change."""

    path: Path
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, state: Path) -> Journal:
        """The journal of a state folder."""
        path = state / "journal.json"
        return cls(path, json.loads(path.read_text()) if path.exists() else {})

    def of(self, step: Step) -> dict[str, Any]:
        """A step's entry; empty where it was never begun."""
        return self.found.get(step.name, {})

    def note(self, step: Step, **fields: Any) -> None:
        """Write fields of a step's entry."""
        self.found[step.name] = {**self.of(step), **fields}
        write_atomically(self.path, json.dumps(self.found, indent=1) + "\n")

    def forget(self, names: Sequence[str]) -> None:
        """Run steps again that are done."""
        for name in names:
            self.found.pop(name, None)

    def done(self, step: Step) -> bool:
        return self.of(step).get("state") == "done"


@dataclass
class Driver:
    """One call.

    Attributes:
        state: journal, homes and caches, kept between the calls.
        out: where the results of all calls go.
        deadline: on the clock, when the call must have ended.
        device: of the scale that is run.
    """

    state: Path
    out: Path
    deadline: float
    device: str
    journal: Journal
    clock: Callable[[], float] = time.monotonic

    def left_s(self) -> float:
        """Seconds for commands: the rest of the call, without stopping and packing."""
        return self.deadline - self.clock() - PACKING_S - STOPPING_S

    def home(self, step: Step) -> Path:
        """The home of a step, with the cache that all share."""
        home = self.state / "homes" / (step.home or step.name)
        home.mkdir(parents=True, exist_ok=True)
        cache = self.state / "cache"
        cache.mkdir(exist_ok=True)
        if not (home / "cache").exists():
            (home / "cache").symlink_to(cache, target_is_directory=True)
        return home

    def go(self, wanted: Sequence[Step]) -> bool:
        """Run what is not done, as far as the time reaches; whether all is done."""
        for step in wanted:
            if self.journal.done(step):
                continue
            reason = self.not_begun(step)
            if reason:
                say(f"{step.name:22} not begun: {reason}")
                continue
            self.take(step)
            self.pack()
        return all(map(self.journal.done, wanted))

    def not_begun(self, step: Step) -> str:
        """Why a step is not begun now; empty where it is."""
        left, least = self.left_s(), LEAST_S[self.device]
        needed = step.seconds if self.device != "cpu" and not step.resumable else least
        if left < needed:
            return f"{max(0.0, left):.0f} s are left, and it takes about {step.seconds:.0f}"
        if step.home and not self.run_of(step):
            return f"it needs the run of {step.home}"
        return ""

    def run_of(self, step: Step) -> str:
        """The decided run of the step whose home it works in."""
        return str(self.journal.found.get(step.home, {}).get("run") or "")

    # --- one step ------------------------------------------------------------------------------

    def take(self, step: Step) -> None:
        """Run a step, or go on with it, and note what came of it."""
        begun = unfinished(self.home(step), step.kind)
        began = self.clock()
        code = self.command(step, begun)
        if code == Exit.USAGE and begun:
            say(f"{step.name:22} cannot go on with {begun} (see the log); it begins anew")
            code = self.command(step, "")
        seconds = self.journal.of(step).get("seconds", 0.0) + self.clock() - began
        found = evidence_of(self.home(step), step, self.looked(step))
        stopped = code in (None, Exit.INTERRUPTED)
        state = "interrupted" if stopped else "done" if code in DONE else "failed"
        if found.fields().get("reason") == "unmet":  # something is missing that may be brought
            state = "failed"
        calls = self.journal.of(step).get("calls", 0) + 1
        fields = {"state": state, "exit_code": code, "seconds": round(seconds, 1), "calls": calls}
        self.journal.note(step, **fields, **found.fields())
        say(f"{step.name:22} {state:11} {seconds:5.0f} s  {found.text}")

    def looked(self, step: Step) -> Path:
        """Where a fast look writes its figures."""
        return self.state / "looks" / f"{step.name}.json"

    def command(self, step: Step, begun: str) -> int | None:
        """The exit code of the command; None where the time ended it."""
        words = [sys.executable, str(ROOT / "cli.py"), *self.words(step, begun)]
        if step.module:
            self.looked(step).parent.mkdir(exist_ok=True)
            words = [sys.executable, "-m", step.module, *step.words, "--out"]
            words.append(str(self.looked(step)))
        variables = {
            **os.environ,
            "LEVERGATE_HOME": str(self.home(step)),
            "LEVERGATE_LEVERS": str(self.state / "levers"),
            "PYTHONUNBUFFERED": "1",
        }
        with (self.out / f"{NAME}.log").open("a") as log:
            log.write(f"\n## {step.name}: {' '.join(words[1:])}\n")
            log.flush()
            return within(words, variables, log, self.left_s())

    def words(self, step: Step, begun: str) -> tuple[str, ...]:
        """The words of a command of levergate, to begin it or to go on."""
        if begun and step.kind == "ab":
            return ("ab", step.words[1], "--resume", begun, "--yes")
        if begun and step.kind == "stack":
            return ("stack", "--resume", begun, "--yes")
        run = self.run_of(step)
        return tuple(run if word == RUN else word for word in step.words)

    # --- what comes back -----------------------------------------------------------------------

    def pack(self) -> None:
        """Write bundles, figures and state to OUT; what is there is replaced."""
        write_atomically(self.out / f"{NAME}.json", json.dumps(self.journal.found, indent=1) + "\n")
        bundles = self.state / "bundles"
        bundles.mkdir(exist_ok=True)
        for home in sorted((self.state / "homes").iterdir()):
            export(home, bundles)
        archive(self.out / f"{NAME}.tar.gz", [bundles, self.state / "looks"], self.state)
        kept = [self.state / name for name in ("journal.json", "cache", "homes", "looks")]
        archive(self.out / f"{NAME}.state.tar.gz", kept, self.state)


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def prepare_sets(state: Path, scale: Scale) -> None:
    """The sets of levers as lever files."""
    folder = state / "levers"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["LEVERGATE_LEVERS"] = str(folder)
    for name, members in scale.named.items():
        whole_stack.plugin(folder, members, name)


def chosen(all_steps: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """The steps of the named items, or all."""
    return [one for one in all_steps if not only or one.item in only or one.name in only]


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
        for step in wanted:
            state = journal.of(step).get("state", "open")
            say(f"{step.name:22} {state:11} {step.seconds:5.0f} s  {' '.join(step.words)}")
        return 0
    prepare_sets(options.state, scale)
    deadline = began + options.limit
    driver = Driver(options.state, options.out, deadline, scale.device, journal)
    done = driver.go(wanted)
    driver.pack()
    return 0 if done else LEFT


if __name__ == "__main__":
    sys.exit(main())
