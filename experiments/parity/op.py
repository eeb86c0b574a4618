"""Check 1, ``op``: the changed operation against fp64 truth (torch-free until a case runs).

Each case of the lever is run by both arms on fresh inputs. The outputs are poisoned before each
call and must be fully written; a null candidate (zeros, nothing written, a copy of an input) must
fail, or the case has no power and is not counted. Nor is a case counted in which both arms do the
same work (:mod:`experiments.parity.op_work`): there nothing is compared. A check without a case
that counts is empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from experiments.failure_kinds import levers_own
from experiments.parity import op_summary
from experiments.parity.bench import BYTE_EXACT_REPEATS, Bench
from experiments.parity.op_summary import summary
from experiments.parity.results import empty, not_run
from experiments.parity_records import CaseResult, CheckResult
from experiments.tasks import SHARE, Task, TaskResult
from experiments.values import digest_of
from levers import catalog
from levers.base import OFF, Lever, OpCase
from levers.known_reports import KnownReport, known_reports
from levers.policy import ParityClass

if TYPE_CHECKING:
    from experiments.workloads.base import Session

A = TypeVar("A")
B = TypeVar("B")

NAME = op_summary.NAME

STATED = "op_cases_stated"
"""Fact of a process that runs a share: the digest of the names of all cases."""

OTHER_CASES = "the lever states other op cases in other processes: what was compared is not known"

NO_CASES = "the lever states no op case for these settings: nothing was held against fp64 truth"


def check(bench: Bench) -> CheckResult:
    """Run the op cases in a measured process, or in several that share them.

    Raises:
        ProcessFailed: a process failed.
    """
    if bench.parts == 1:
        return bench.probe("op", arguments(bench))
    shares = [bench.run(task) for task in ahead(bench)]
    if len({share.facts.get(STATED) for share in shares}) > 1:
        return empty(NAME, OTHER_CASES)
    found = [share.cases for share in shares]
    results = [one for row in itertools.zip_longest(*found) for one in row if one is not None]
    return summary(results, bench.spec.seed) if results else not_run(NAME, NO_CASES)


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for."""
    asked = arguments(bench)
    if bench.parts == 1:
        return (bench.probe_task("op", asked),)
    shares = (f"{part}/{bench.parts}" for part in range(bench.parts))
    return tuple(bench.probe_task("op", {**asked, SHARE: share}) for share in shares)


def arguments(bench: Bench) -> dict[str, Any]:
    """What a probe of the operation must know of the comparison and its policy."""
    policy = bench.spec.policy
    claims_bits = policy.claims is ParityClass.BYTE_EXACT
    return {
        "ref": bench.spec.ref,
        "tolerance": None if policy.tolerance is None else policy.tolerance.relative_error,
        "byte_exact": bench.demands_bits,
        "repeats": BYTE_EXACT_REPEATS if claims_bits else 2,
    }


def probe(task: Task, session: Session | None) -> CheckResult:  # noqa: ARG001 - the probes' shape
    """Run all cases of the task's subject, inside the measured process."""
    if task.arguments.get("reference_only"):
        _references(task)
        return summary([], task.seed)
    results = _results(task)
    return summary(results, task.seed) if results else not_run(NAME, NO_CASES)


def shared(task: Task) -> TaskResult:
    """Run this process's share of the cases; the parent sums them up."""
    if task.arguments.get("reference_only"):
        _references(task)
        return TaskResult()
    stated = digest_of(" ".join(case.name for case in cases_of(task)))
    return TaskResult(cases=_results(task), facts={STATED: stated})


def _references(task: Task) -> None:
    from experiments.parity.op_case import reference_alone

    for case in _share_of(task):
        reference_alone(case, task.seed)


def _results(task: Task) -> tuple[CaseResult, ...]:
    from experiments.parity.op_case import check_case
    from experiments.parity.op_judge import Bar

    bar = Bar(
        tolerance=task.arguments["tolerance"],
        byte_exact=task.arguments["byte_exact"],
        repeats=task.arguments["repeats"],
    )
    return tuple(check_case(case, task.seed, bar) for case in _share_of(task))


def _share_of(task: Task) -> tuple[OpCase, ...]:
    """The cases of this process: of all, or of every so manieth."""
    part, _, parts = str(task.arguments.get(SHARE, "0/1")).partition("/")
    return cases_of(task)[int(part) :: int(parts)]


def known_reports_of(task: Task) -> tuple[KnownReport, ...]:
    """What the lever under test says of sanitizers' reports, of whichever settings run.

    Raises:
        DefectiveLever: it could not say, or would set aside reports of whichever kernel.
    """
    subject = task.subject
    if subject is None:
        return ()
    lever = catalog.get(subject.lever)
    settings = {str(task.arguments.get("ref", OFF)), subject.setting} - {OFF}
    with levers_own(f"known_reports of {lever.name}"):
        found = [one for setting in sorted(settings) for one in known_reports(lever, setting)]
    return tuple(dict.fromkeys(found))


def cases_of(task: Task) -> tuple[OpCase, ...]:
    """The op cases of ref against cand, whichever of the two is off.

    With both on, a case's reference is the reference setting's own candidate; only cases that both
    settings state can be compared.

    Raises:
        DefectiveLever: the lever could not state them, nor draw inputs, outputs or truth later.
    """
    subject = task.subject
    if subject is None:
        raise ValueError(f"a {task.kind} task names no lever under test")
    lever = catalog.get(subject.lever)
    ref, cand = str(task.arguments.get("ref", OFF)), subject.setting
    if cand == OFF:
        swapped = _stated(lever, OFF if ref == OFF else ref, task.own_device)
        return tuple(_swap(case) for case in swapped)
    cases = _stated(lever, cand, task.own_device)
    if ref == OFF:
        return cases
    others = {case.name: case for case in _stated(lever, ref, task.own_device)}
    return tuple(
        replace(case, reference=others[case.name].candidate, reorderings=())
        for case in cases
        if case.name in others
    )


def _stated(lever: Lever, setting: str, device: str) -> tuple[OpCase, ...]:
    """The cases that a lever states, each of which blames the lever for what is not an arm's."""
    with levers_own(f"op_cases of {lever.name}={setting}"):
        return tuple(
            _own(case, f"of its case {case.name!r}") for case in lever.op_cases(setting, device)
        )


def _own(case: OpCase, whose: str) -> OpCase:
    return replace(
        case,
        inputs=_of_lever(case.inputs, f"inputs {whose}"),
        outputs=_of_lever(case.outputs, f"outputs {whose}"),
        truth=_of_lever(case.truth, f"truth {whose}"),
        masks=case.masks and _of_lever(case.masks, f"masks {whose}"),
    )


def _of_lever(hook: Callable[[A], B], what: str) -> Callable[[A], B]:
    def blaming(given: A) -> B:
        with levers_own(what):
            return hook(given)

    return blaming


def _swap(case: OpCase) -> OpCase:
    return replace(case, reference=case.candidate, candidate=case.reference, reorderings=())
