"""Going on with what was begun: it keeps what it began with, and what is typed beside must agree.

An option that a resumed run, selection, calibration or stack could only ignore would leave its user
with the answer to another question than the one that was typed. What is typed as it was the first
time is let through.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from experiments import beside, environment, prepare, token_models
from experiments.calibration.requests import DEFAULT_PAIRS, CalibrateRequest
from experiments.candidates import candidates
from experiments.family.records import FamilyHead
from experiments.plan import BLOCK_PAIRS
from experiments.requests import NO_ORACLE, AbRequest
from experiments.run_record import RunRecord
from experiments.spec import AbSpec, ranks_of
from experiments.stack.prepare import typed
from experiments.stack.records import StackRecord, StackSpec
from experiments.stack.requests import DEFAULT_BLOCKS, StackRequest
from experiments.workloads import catalog as workloads
from levers import catalog
from levers.base import OFF
from levers.errors import UsageError

Difference = tuple[str, object, object]
"""An option, what was typed, and what was begun."""


def refuse_other_run(request: AbRequest, record: RunRecord) -> None:
    """Refuse what is typed beside ``--resume`` where the run is of something else.

    More pairs, with a budget for them, are an extension, which has rules of its own.

    Raises:
        UsageError: an option that could only be ignored, with what the run has in its place.
    """
    spec = record.spec
    cand = () if request.cand is None else (("--cand", request.cand, spec.cand),)
    more = request.max_pairs is not None
    budget = () if more else tuple(_budget(request.budget_s, spec.budget_s))
    _refuse(
        (*cand, *_options(request, spec), *budget, *_settings(request.settings, spec)),
        f"run {record.run_id}",
        f"levergate ab {spec.lever} --resume {record.run_id}",
    )


def refuse_other_selection(request: AbRequest, head: FamilyHead, member: RunRecord) -> None:
    """The same for a selection among several settings; ``member`` is the evidence of any of them.

    Raises:
        UsageError: an option that could only be ignored.
    """
    spec, begun = member.spec, head.request
    differences = (
        *_candidates(request, head),
        *_options(request, spec, begun.tokens_on),
        *_budget(request.budget_s, begun.budget_s),
        *(() if request.max_pairs is None else (("--pairs", request.max_pairs, begun.max_pairs),)),
        *_settings(request.settings, spec),
    )
    command = f"levergate ab {spec.lever} --resume {head.family_id}"
    _refuse(differences, f"selection {head.family_id}", command)


def refuse_other_calibration(request: CalibrateRequest, record: RunRecord) -> None:
    """The same for a calibration.

    Raises:
        UsageError: an option that could only be ignored.
    """
    spec = record.spec
    named = (("--workload", request.workload, spec.workload), ("--seed", request.seed, spec.seed))
    differences = (
        *(one for one in named if one[1] is not None),
        *_device(request.device, spec),
        *_pairs(request.pairs, spec.looks[-1]),
        *_budget(request.budget_s, spec.budget_s),
        *_settings(request.settings, spec),
    )
    command = f"levergate calibrate --resume {record.run_id}"
    _refuse(differences, f"calibration {record.run_id}", command)


def refuse_other_stack(request: StackRequest, head: StackRecord) -> None:
    """The same for a stack; figures of others beside its rows are refused before (``--published``).

    Raises:
        UsageError: an option that could only be ignored.
    """
    spec = head.spec
    differences = (
        *_of_stack(request, spec),
        *_device(request.device, spec),
        *_tokens_on(request.tokens_on, _texts(spec)),
        *_budget(request.budget_s, spec.budget_s),
        *_settings(request.settings, spec),
    )
    command = f"levergate stack --resume {head.stack_id}"
    _refuse(differences, f"stack {head.stack_id}", command)


def _of_stack(request: StackRequest, spec: StackSpec) -> Iterator[Difference]:
    """What was typed of a stack's rows and blocks; a word that is the default asks for nothing."""
    if request.workload:
        yield "WORKLOAD", request.workload, spec.workload
    if request.levers:
        asked = " ".join(map(str, typed(request.levers)))
        yield "--levers", asked, " ".join(map(str, spec.levers)) or "none"
    if request.seed is not None:
        yield "--seed", request.seed, spec.seed
    if request.oracle is not None:
        yield "--oracle", request.oracle, spec.oracle.oracle if spec.oracle else NO_ORACLE
    if request.blocks != DEFAULT_BLOCKS:
        yield "--blocks", request.blocks, spec.blocks
    if request.ranks != 1:
        yield "--ranks", request.ranks, ranks_of(spec.parameters)
    if not request.leave_one_out and spec.left_out:
        yield "--leave-one-out", "--no-leave-one-out", "yes"
    if not request.pairs and spec.overlaps:
        yield "--pairs", "--no-pairs", "yes"


def _refuse(differences: Iterable[Difference], what: str, command: str) -> None:
    for option, asked, begun in differences:
        if asked != begun:
            raise UsageError(
                f"{what} has {option} {begun}, not {asked}",
                cure=f"{command} goes on with its own; without --resume a new one begins",
            )


def _options(
    request: AbRequest, spec: AbSpec, models: Sequence[str] | None = None
) -> Iterator[Difference]:
    """What was typed; a word that is the default cannot be told from none, and asks for nothing.

    ``models`` are those of a whole selection as typed, of which a setting may have fewer.
    """
    if request.ref != OFF:
        yield "--ref", request.ref, spec.ref
    if request.workload is not None:
        yield "--workload", request.workload, spec.workload
    yield from _device(request.device, spec)
    if request.seed is not None:
        yield "--seed", request.seed, spec.seed
    if request.oracle is not None:
        yield "--oracle", request.oracle, spec.oracle or NO_ORACLE
    if request.ranks != 1:
        yield "--ranks", request.ranks, ranks_of(spec.parameters)
    if request.beside:
        on = {str(one) for one in spec.stack}
        missing = [one for one in typed(request.beside, beside.OPTION) if str(one) not in on]
        if missing:
            yield beside.OPTION, missing[0], " ".join(sorted(on)) or "none"
    yield from _tokens_on(request.tokens_on, _texts(spec) if models is None else models)
    if request.sequential != "group-sequential":
        yield "--sequential", request.sequential, spec.sequential


def _texts(spec: AbSpec | StackSpec) -> tuple[str, ...]:
    return tuple(one.text for one in spec.tokens_on)


def _tokens_on(texts: Sequence[str], begun: Sequence[str]) -> Iterator[Difference]:
    """The models of the tokens, in any order; none asks for nothing.

    Raises:
        UsageError: a lever or setting of theirs that is not known.
    """
    if texts:
        asked, there = (
            " ".join(sorted(",".join((model, *map(str, levers))) for model, levers in named))
            for named in ([token_models.named(text) for text in each] for each in (texts, begun))
        )
        yield token_models.OPTION, asked, there or "none"


def _candidates(request: AbRequest, head: FamilyHead) -> Iterator[Difference]:
    if request.cand is not None:
        check = catalog.get(head.request.lever).settings.check
        asked = sorted(check(head.request.lever, one) for one in candidates(request.cand))
        yield "--cand", ",".join(asked), ",".join(sorted(setting for setting, _ in head.runs))


def _device(asked: str | None, spec: AbSpec | StackSpec) -> Iterator[Difference]:
    """The device as it was found here.

    Raises:
        UsageError: there is none of that name.
    """
    if asked is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = environment.find_device(asked, visible=visible, ranks=ranks_of(spec.parameters))
        yield "--device", found.facts.device, spec.device


def _pairs(asked: int, begun: int) -> Iterator[Difference]:
    """Pairs of a calibration, in whole blocks as they were begun."""
    if asked != DEFAULT_PAIRS and -(-asked // BLOCK_PAIRS) * BLOCK_PAIRS != begun:
        yield "--pairs", asked, begun


def _budget(asked_s: float | None, begun_s: float | None) -> Iterator[Difference]:
    if asked_s is not None:
        yield "--budget", f"{asked_s:g}s", "none" if begun_s is None else f"{begun_s:g}s"


def _settings(asked: Mapping[str, str], spec: AbSpec | StackSpec) -> Iterator[Difference]:
    """The workload's parameters, read as at the beginning: ``1, 2`` and ``1,2`` are the same.

    Raises:
        UsageError: one that the workload does not have or take.
    """
    if not asked:
        return
    own = {name: str(spec.parameters[name]) for name in OWN if name in spec.parameters}
    facts = environment.find_device(spec.device, ranks=ranks_of(spec.parameters)).facts
    read = workloads.get(spec.workload).resolve({**own, **asked}, facts)
    for name in asked:
        option = f"--{name}" if name in OWN else f"--set {name}"
        yield option, read.get(name), spec.parameters.get(name)


OWN = prepare.OWN_OPTIONS
"""Parameters with an option of their own; what others mean may depend on them."""
