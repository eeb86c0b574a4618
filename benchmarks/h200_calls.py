"""What the drivers of :mod:`.h200_training` and :mod:`.h200_decode` share: calls of limited time.

A driver has steps and runs them in order. One that was finished is not run again; one that does not
fit the rest of the time is begun only if it can go on later, and is then interrupted at the limit.
What is known of each step is in a journal, on disk after each change.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import h200_parity
from benchmarks.h200_commands import ROOT, STOPPING_S, Halt, within
from benchmarks.h200_journal import Journal
from benchmarks.h200_training_evidence import evidence_of, export, held, unfinished
from benchmarks.h200_training_packing import archive, copy_new
from benchmarks.h200_training_steps import MODEL, RUN, Step
from experiments.exit_codes import Exit
from experiments.files import write_atomically

LEFT = 3
"""Exit code of a call that left something to do."""

DONE = (Exit.VERDICT, Exit.INCONCLUSIVE, Exit.INVALID)

WEIGHTS = "model.safetensors"

PACKING_S = 12.0
"""Kept free at the end of a call for bundles and state."""

LEAST_S = {"cuda:0": 60.0, "cpu": 10.0}
"""Nothing that can go on later is begun for less."""


@dataclass
class Driver:
    """One call.

    Attributes:
        state: journal, homes and caches, kept between the calls.
        out: where the results of all calls go.
        deadline: on the clock, when the call must have ended.
        device: of the scale that is run.
        name: what its files are called.
        shared: folder through which calls on several GPUs of one host see each other's trained
            weights, bundles, kept parity and compiled oracles; None keeps them in the state.
        halt: what ends the call before its time.
    """

    state: Path
    out: Path
    deadline: float
    device: str
    journal: Journal
    name: str
    clock: Callable[[], float] = time.monotonic
    shared: Path | None = None
    halt: Halt = field(default_factory=Halt)

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

    def carry_out(self, wanted: Sequence[Step]) -> int:
        """Run what is not done and give the exit code of the call.

        A signal ends the call as its time does. What came of it is packed, whatever ends it.
        """
        with self.halt.by_signals():
            try:
                return 0 if self.go(wanted) else LEFT
            finally:
                self.pack()

    def go(self, wanted: Sequence[Step]) -> bool:
        """Run what is not done, as far as the time reaches; whether all is done.

        What waits for trained weights is looked at again behind the steps after it.
        """
        left, taken = [one for one in wanted if not self.journal.done(one)], True
        while left and taken:
            waiting, taken = [], False
            for step in left:
                if self.waits(step):
                    waiting.append(step)
                elif reason := self.not_begun(step):
                    say(f"{step.name:22} not begun: {reason}")
                else:
                    self.take(step)
                    if not self.halt.why:  # the call's last packing is next
                        self.pack()
                    taken = True
            left = waiting
        for step in left:
            say(f"{step.name:22} not begun: the weights {step.needs} are not trained yet")
        return all(map(self.journal.done, wanted))

    def waits(self, step: Step) -> bool:
        """Whether a step's trained weights are not there yet."""
        return bool(step.needs) and not (self.model(step.needs) / WEIGHTS).is_file()

    def model(self, name: str) -> Path:
        """The folder of trained weights."""
        return (self.shared or self.state) / "models" / name

    def not_begun(self, step: Step) -> str:
        """Why a step is not begun now; empty where it is."""
        if self.halt.why:
            return self.halt.why
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
        began = self.clock()
        self.exchange()
        if step.parts:
            h200_parity.take(self, step)
            return
        if step.kind == "campaign":
            self.take_in(step)
        code = self.attempt(step)
        self.ended(step, code, self.clock() - began)

    def attempt(self, step: Step, *more: Any) -> int | None:
        """Go on with what a step has begun, or begin it where there is nothing to go on with.

        Args:
            step: the step.
            more: what :meth:`command` takes beside.
        """
        begun = unfinished(self.home(step), step.kind)
        code = self.command(step, begun, *more)
        if code == Exit.USAGE and begun:
            say(f"{step.name:22} cannot go on with {begun} (see the log); it begins anew")
            code = self.command(step, "", *more)
        return code

    def ended(self, step: Step, code: int | None, took_s: float) -> None:
        """Note what came of a step in this call."""
        seconds = self.journal.of(step).get("seconds", 0.0) + took_s
        found = evidence_of(self.home(step), step, self.looked(step))
        stopped = code in (None, Exit.INTERRUPTED)
        state = "interrupted" if stopped else "done" if code in DONE else "failed"
        if step.kind == "campaign" and code == Exit.INCONCLUSIVE:
            state = "open"
        if state == "done" and step.kind == "ab" and held(self.home(step)):
            state = "checked"
        if found.fields().get("reason") == "unmet":  # something is missing that may be brought
            state = "failed"
        calls = self.journal.of(step).get("calls", 0) + 1
        fields = {"state": state, "exit_code": code, "seconds": round(seconds, 1), "calls": calls}
        self.journal.note(step, **fields, **found.fields())
        say(f"{step.name:22} {state:11} {seconds:5.0f} s  {found.text}")

    def looked(self, step: Step) -> Path:
        """Where a fast look writes its figures."""
        return self.state / "looks" / f"{step.name}.json"

    def command(
        self, step: Step, begun: str, more: Sequence[str] = (), log: str = ""
    ) -> int | None:
        """The exit code of the command, with further words; None where the time ended it."""
        words = [sys.executable, str(ROOT / "cli.py"), *self.words(step, begun), *more]
        if step.module:
            self.looked(step).parent.mkdir(exist_ok=True)
            words = [sys.executable, "-m", step.module, *step.words, "--out"]
            words.append(str(self.made(step) if step.makes else self.looked(step)))
        code = self.run(step, words, log)
        if step.makes and code == Exit.VERDICT:
            self.made(step).rename(self.model(step.makes))
        return code

    def made(self, step: Step) -> Path:
        """Where weights are written before they get their name, at which others look for them."""
        place = self.model(step.makes)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place.with_name(f"{place.name}.{os.getpid()}")

    def run(self, step: Step, words: Sequence[str], name: str = "") -> int | None:
        """Run a program in the home of a step, within the time that is left."""
        variables = {
            **os.environ,
            "LEVERGATE_HOME": str(self.home(step)),
            "PYTHONUNBUFFERED": "1",
        }
        if (self.state / "levers").is_dir():
            variables["LEVERGATE_LEVERS"] = str(self.state / "levers")
        with (self.out / f"{name or self.name}.log").open("a") as log:
            log.write(f"\n## {step.name}: {' '.join(words[1:])}\n")
            log.flush()
            return within(words, variables, log, self.left_s(), self.halt)

    def words(self, step: Step, begun: str) -> tuple[str, ...]:
        """The words of a command of levergate, to begin it or to go on."""
        if begun and step.kind == "ab":
            return ("ab", step.words[1], "--resume", begun, "--yes")
        if begun and step.kind == "stack":
            return ("stack", "--resume", begun, "--yes")
        place = str(self.model(step.needs)) if step.needs else MODEL
        known = {RUN: self.run_of(step), MODEL: place}
        parts = (word.partition(",") for word in step.words)  # MODEL,mxfp4_weights=on
        return tuple(f"{known.get(head, head)}{comma}{rest}" for head, comma, rest in parts)

    # --- what other calls have -----------------------------------------------------------------

    def exchange(self) -> None:
        """Bundles, kept parity and the oracles' compile caches of the calls beside this one, and
        ours for them."""
        if self.shared is None:
            return
        for name in ("bundles", "cache/parity", "cache/oracles"):
            mine, theirs = self.state / name, self.shared / name
            for source, target in ((theirs, mine), (mine, theirs)):
                copy_new(source, target)

    def take_in(self, step: Step) -> None:
        """Give a campaign the verdicts of all runs that are decided so far; twice does no harm."""
        bundles = [str(path) for path in sorted((self.state / "bundles").glob("ab-*.json"))]
        if bundles:
            self.run(step, [sys.executable, str(ROOT / "cli.py"), "import", *bundles])

    # --- what comes back -----------------------------------------------------------------------

    def pack(self) -> None:
        """Write bundles, figures and state to OUT; what is there is replaced."""
        write_atomically(
            self.out / f"{self.name}.json", json.dumps(self.journal.found, indent=1) + "\n"
        )
        bundles = self.state / "bundles"
        bundles.mkdir(exist_ok=True)
        for home in sorted((self.state / "homes").iterdir()):
            export(home, bundles)
        self.exchange()
        archive(self.out / f"{self.name}.tar.gz", [bundles, self.state / "looks"], self.state)
        kept = [self.state / name for name in ("journal.json", "cache", "homes", "looks")]
        archive(self.out / f"{self.name}.state.tar.gz", kept, self.state)


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def listed(steps: Sequence[Step], journal: Journal) -> None:
    """Print what would be run, and nothing else."""
    for step in steps:
        state = journal.of(step).get("state", "open")
        say(f"{step.name:26} {state:11} {step.seconds:5.0f} s  {' '.join(step.words)}")


def chosen(all_steps: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """The steps of the named items, or all."""
    return [one for one in all_steps if not only or one.item in only or one.name in only]
