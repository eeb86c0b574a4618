"""Run the cases of the self-test through the real pipeline, in a home of their own."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import pipeline
from experiments.home import HOME_VARIABLE
from experiments.records import Decision
from experiments.requests import AbRequest, SilentListener
from experiments.run_record import RunRecord
from experiments.selftest.cases import Case
from experiments.workloads.catalog import VARIABLE as WORKLOADS_VARIABLE
from levers.catalog import FOLDER_VARIABLE

PLANTED = Path(__file__).parent / "planted"
WORKLOAD = "selftest=experiments.selftest.workload:SELFTEST"

AS_PLANTED = "on"

DISTURBED = ("device-busy", "throttled", "pairs-lost", "uneven-loss")
"""Reasons that speak of the machine and not of the lever: the case is run again."""

MOST_TRIES = 3
"""Runs of one case on a machine that is disturbed; then it counts as not passed."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a case got.

    Attributes:
        case: what was planted, and what it must get.
        outcome, reason: what it got.
        problem: why it is not right; empty where it is.
        pairs: pairs measured.
        seconds: wall clock, all tries together.
        tries: how often it ran, because the machine was disturbed.
    """

    case: Case
    outcome: str
    reason: str
    problem: str
    pairs: int
    seconds: float
    tries: int

    @property
    def right(self) -> bool:
        """Whether it got what it must."""
        return not self.problem


def run(
    cases: Sequence[Case],
    cand: str = AS_PLANTED,
    on_result: Callable[[Result], None] = lambda _: None,
) -> tuple[Result, ...]:
    """Every case in order, in a temporary home that is removed afterwards.

    Args:
        cases: what is run; one that follows another comes after it.
        cand: setting of the candidate: ``on``, a number (that many percent slower) or ``wrong``.
        on_result: told of each result as it comes.
    """
    results = []
    with tempfile.TemporaryDirectory(prefix="levergate-selftest-") as home, planted(Path(home)):
        for case in cases:
            results.append(attempt(case, cand))
            on_result(results[-1])
    return tuple(results)


@contextlib.contextmanager
def planted(home: Path) -> Iterator[None]:
    """Make this home the one in use, with the planted levers and their workload in the catalogs."""
    wanted = {
        HOME_VARIABLE: str(home),
        FOLDER_VARIABLE: str(PLANTED),
        WORKLOADS_VARIABLE: WORKLOAD,
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def attempt(case: Case, cand: str = AS_PLANTED) -> Result:
    """One case; again where the machine was disturbed, which says nothing about the lever."""
    began = time.monotonic()
    record, tries = _measured(case, cand), 1
    while tries < MOST_TRIES and record.decision and record.decision.reason in DISTURBED:
        record, tries = _measured(case, cand), tries + 1
    decision = record.decision
    return Result(
        case=case,
        outcome="" if decision is None else decision.outcome.value,
        reason="" if decision is None else decision.reason,
        problem=_problem(case, record),
        pairs=len({sample.pair for sample in record.samples if sample.arm == "cand"}),
        seconds=time.monotonic() - began,
        tries=tries,
    )


def _measured(case: Case, cand: str) -> RunRecord:
    return pipeline.ab(request(case, cand), SilentListener(), mirror=False)


def request(case: Case, cand: str = AS_PLANTED) -> AbRequest:
    """The A/B of a case, as it would be typed."""
    return AbRequest(
        lever=case.planted,
        cand=cand,
        workload="selftest",
        device="cpu",
        settings=case.parameters,
        oracle=case.oracle,
    )


def _problem(case: Case, record: RunRecord) -> str:
    """Why the case is not right: the verdict, its text, its replay, or what the registry holds."""
    decision = record.decision
    if decision is None:
        return f"run {record.run_id} is {record.status}, with no decision"
    if (decision.outcome.value, decision.reason) != (case.outcome, case.reason):
        return decision.detail
    if case.says not in _text(decision, record):
        return f"it does not say {case.says!r}: {_text(decision, record)}"
    if case.after and not record.spec.stack:
        return f"the lever of {case.after} was not on beside it"
    stored, again = pipeline.replay(record.run_id)
    if stored != decision or again != decision:
        return "the registry's record leads to another decision"
    return ""


def _text(decision: Decision, record: RunRecord) -> str:
    """All that a reader sees of why: the detail, the notes, and the checks that did not pass."""
    checks = record.parity.checks if record.parity else ()
    failed = [f"{one.name} {one.worst} {one.detail}" for one in checks if one.status != "not-run"]
    return " ".join([decision.detail, *decision.notes, *failed])
