"""Parity of several levers at once, as one step: nothing is timed, so they may share the device.

Each lever is held against its reference in the home of its own step, which later finds the run that
was begun there and goes on with the samples. What parity decides is that step's answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

from benchmarks.h200_training_evidence import held
from benchmarks.h200_training_steps import Step

if TYPE_CHECKING:
    from benchmarks.h200_calls import Driver

EACH_S = 200
"""Parity, witnesses and the tokens of one lever beside others: what it takes by itself on an H200,
and a third more. Planned; with streams of 128 tokens alone it was more than twice that."""

ENDED = ("checked", "done")
"""States of a lever that needs no parity any more: it passed, or has its verdict."""


def step_of(item: str, parts: Sequence[Step], at_once: int, jobs: int) -> Step:
    """The step of several comparisons.

    Args:
        item: what stands behind ``parity.`` in its name.
        parts: the comparisons, which work on the same trained weights.
        at_once: how many of them are side by side.
        jobs: processes of each.
    """
    return Step(
        f"parity.{item}",
        ("--parity-only", "--parity-jobs", str(jobs)),
        EACH_S * -(-len(parts) // at_once),
        needs=parts[0].needs,
        parts=tuple(parts),
        at_once=at_once,
    )


def take(driver: Driver, step: Step) -> None:
    """Run what is left of a step's parts, as many at once as it says, and note what came of each.

    A part that the time cuts off goes on in the next call; of the others nothing is repeated.
    """
    began = driver.clock()
    left = [part for part in step.parts if state_of(driver, part) not in ENDED]
    for part, code, seconds in _taken(driver, step, left):
        driver.ended(part, code, seconds)
        driver.exchange()
    states = {part.name: state_of(driver, part) for part in step.parts}
    entry = driver.journal.of(step)
    fields = {
        "state": _state(set(states.values())),
        "seconds": round(entry.get("seconds", 0.0) + driver.clock() - began, 1),
        "calls": entry.get("calls", 0) + 1,
        "text": ", ".join(f"{count} {state}" for state, count in Counter(states.values()).items()),
        "parts": states,
    }
    driver.journal.note(step, **fields)
    print(
        f"{step.name:22} {fields['state']:11} {fields['seconds']:5.0f} s  {fields['text']}",
        flush=True,
    )


def state_of(driver: Driver, part: Step) -> str:
    """What is known of a part: the journal's word, or ``checked`` where its samples are to come."""
    if driver.journal.done(part):
        return "done"
    if held(driver.home(part)):
        return "checked"
    return str(driver.journal.of(part).get("state", "open"))


def _state(states: set[str]) -> str:
    """Of the step, by those of its parts."""
    if states <= {*ENDED}:
        return "done"
    return "failed" if "failed" in states else "interrupted"


def _taken(
    driver: Driver, step: Step, parts: list[Step]
) -> Iterator[tuple[Step, int | None, float]]:
    """Each part that was begun, as it ends, with its exit code and its seconds."""

    def run(part: Step) -> tuple[int | None, float] | None:
        if driver.not_begun(part):
            return None
        began = time.monotonic()
        code = driver.attempt(part, step.words, f"{driver.name}.{part.name}")
        return code, time.monotonic() - began

    with ThreadPoolExecutor(step.at_once) as pool:
        begun = {pool.submit(run, part): part for part in parts}
        try:
            for future in as_completed(begun):
                if (found := future.result()) is not None:
                    yield begun[future], *found
        except BaseException:  # the pool waits for the others: they are to end now
            driver.halt.why = f"{step.name} could not go on"
            raise
