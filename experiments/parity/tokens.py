"""Check 3, ``tokens``: greedy decoding of fixed prompts by both arms, alone and under load.

The reference is run against itself first. *Strict*: every stream of the candidate must be equal.
Otherwise *near-tie*: for a stream that differs the reference is teacher-forced on the common
prefix, and the gap between its own choice and the candidate's says whether the divergence is a
near-tie. Of all streams compared at most ``floor(share x streams)`` may be near-ties, beside as
many as the reference has against itself. Where a lever that claims lossless has more, each arm's
streams are held against those of fp64 (:mod:`experiments.parity.token_truth`).

A shorter answer is never a speed-up. Streams that do not part must end at the same token and for
the same reason. After an allowed near-tie the answers go on about different texts, so there the
candidate's own end counts: the reference, forced through the candidate's tokens, must find the stop
a choice of its own or a near-tie, by the same bound (:mod:`experiments.parity.streams`).

Where the comparison names models for its tokens, each of them decodes the prompts in place of the
timed one, in every mode, and each is judged by itself. What the lever does there is not known from
the timed model, so each arm's witness is taken with each of them. A model on which both run the
same plan everywhere is left out and said, since its streams are equal whatever the lever does; a
load is the largest concurrency at which the plans differ, if any but one does.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from experiments.parity.bench import Arms, Bench, ProcessFailed
from experiments.parity.results import empty, failed, not_run, reference_fault
from experiments.parity.streams import Choice, Compared, apart, compare, later, merge
from experiments.parity.token_modes import NO_LOADS, Mode, modes, modes_of, repeated
from experiments.parity.token_truth import WANT, FromTruth, of_pairs
from experiments.parity.tokens_judge import asks_truth, judge, judged, wide
from experiments.parity_records import CheckResult
from experiments.spec import TokenModel
from experiments.tasks import Outputs, Task
from experiments.workloads.base import DecodesInDouble
from levers.policy import ParityClass

NAME = "tokens"
RANDOM_MODEL = "random-"

OF_CONCURRENCY = re.compile(r"/c(\d+)$")
"""The end of an axis that belongs to one concurrency."""

FAR_PROMPTS = 16
"""Streams that are looked at for a choice that the reference finds far less likely."""


def check(bench: Bench) -> CheckResult:
    """Decode the prompts with both arms and classify every stream.

    Raises:
        ProcessFailed: a process failed.
    """
    reason = no_claim(bench)
    if reason:
        return not_run(NAME, reason)
    loads = {one.label: _load(bench, one) for one in bench.spec.tokens_on}
    same = [label for label, load in loads.items() if load is None]
    said = f"both arms run the same plan with {', '.join(same)}" if same else ""
    if same and len(same) == len(loads):
        return empty(NAME, f"{said}, so that no stream says anything of the lever")
    found = run(bench, bench.alone, NAME, loads)
    lengths = {mode.arguments.get("max_tokens") for mode in modes(bench, loads)} - {None}
    short = "".join(f"streams alone have {tokens} tokens" for tokens in lengths)
    detail = "; ".join(filter(None, (found.detail, short, said and f"{said}: left out")))
    return found.model_copy(update={"detail": detail})


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for, if the lever acts at the largest load."""
    if no_claim(bench):
        return ()
    witnesses = (task for one in bench.spec.tokens_on for task in _witnesses(bench, one))
    return (*witnesses, *tasks(bench, bench.alone))


def _witnesses(bench: Bench, model: TokenModel) -> tuple[Task, Task]:
    """The processes that say which path each arm runs with this model."""
    on = Mode("", {}, model.parameters, model.label, model.levers).on(bench.alone)
    ref = bench.witness_task("ref", on.ref, model.parameters)
    return ref, bench.witness_task("cand", on.cand, model.parameters)


def _load(bench: Bench, model: TokenModel) -> int | None:
    """The largest concurrency at which the arms' plans differ with this model.

    1 where that is alone or on no concurrency's axis; None where they differ nowhere.
    """
    with _named(Mode(f"{model.label}, witness", {}, {}, model.label)):
        ref, cand = (bench.run(task).plans for task in _witnesses(bench, model))
    differ = [axis for axis in {*ref, *cand} if ref.get(axis) != cand.get(axis)]
    counts = (int(found[1]) for axis in differ if (found := OF_CONCURRENCY.search(axis)))
    return max(counts, default=1) if differ else None


def tasks(bench: Bench, arms: Arms) -> tuple[Task, ...]:
    """The processes that :func:`run` will ask for, unless a stream differs."""
    return tuple(
        task
        for mode in modes(bench)
        for task in (
            _token_task(bench, "ref", arms, mode),
            _token_task(bench, "ref", arms, repeated(bench, mode), repeat=1),
            _token_task(bench, "cand", arms, mode),
        )
    )


def no_claim(bench: Bench) -> str:
    """Why token equality means nothing here; empty where it does."""
    return "" if bench.spec.tokens_on else no_own_claim(bench)


def no_own_claim(bench: Bench) -> str:
    """Why the tokens of the timed model mean nothing; empty where they do mean something."""
    if NAME not in bench.workload.checks:
        return f"the workload {bench.spec.workload} decodes no tokens"
    model = str(bench.spec.parameters.get("model", ""))
    if model.startswith(RANDOM_MODEL):
        return f"model {model} has random weights: its tokens carry no claim"
    return ""


def run(
    bench: Bench, arms: Arms, name: str, loads: Mapping[str, int | None] = NO_LOADS
) -> CheckResult:
    """The whole token check for one pair of lever sets.

    Args:
        bench: the comparison.
        arms: the sets.
        name: of the check.
        loads: for each model that is named for the tokens, see :func:`modes`.

    Raises:
        ProcessFailed: a process failed.
    """
    parts: dict[str, list[tuple[Mode, Compared]]] = {}
    for mode in modes(bench, loads):
        with _named(mode):
            found = _mode(bench, arms, mode, name)
        if isinstance(found, CheckResult):
            return found
        parts.setdefault(mode.model, []).append((mode, found))
    results = {}
    for model, seen in parts.items():
        compared = merge([one for _, one in seen])
        with _named(seen[-1][0]):
            truth = _truth(bench, arms, [mode for mode, _ in seen], compared)
        results[model] = judge(name, compared, bench.spec.policy, strict=bench.strict, truth=truth)
    return judged(name, results)


def _truth(bench: Bench, arms: Arms, seen: Sequence[Mode], compared: Compared) -> FromTruth | None:
    """How often each arm leaves fp64's streams, where that is asked and the workload has them.

    Under load, where streams are whole, and each prompt once.
    """
    there = isinstance(bench.workload, DecodesInDouble)
    if not there or not asks_truth(compared, bench.spec.policy, strict=bench.strict):
        return None
    loaded = max(seen, key=lambda mode: int(mode.arguments["concurrency"]))
    asked = {**loaded.arguments, "want": WANT}
    truth = bench.outputs("ref", loaded.on(arms).ref, asked, parameters=loaded.parameters)
    ref, cand = _ask(bench, "ref", arms, loaded), _ask(bench, "cand", arms, loaded)
    found = of_pairs([(ref, cand)], truth)
    if not found.tells or found.further:
        return found
    return replace(found, later=_asked(bench, arms, loaded, later(loaded.name, ref, cand)))


def _mode(bench: Bench, arms: Arms, mode: Mode, name: str) -> Compared | CheckResult:
    """The streams of one mode side by side, or what ends the check."""
    ref = _ask(bench, "ref", arms, mode)
    again = _ask(bench, "ref", arms, repeated(bench, mode), repeat=1)
    cand = _ask(bench, "cand", arms, mode)
    fault = _fault(name, mode, ref, again, cand, bench)
    return fault or _with_gaps(bench, arms, mode, compare(mode.name, ref, again, cand))


@contextlib.contextmanager
def _named(mode: Mode) -> Iterator[None]:
    """A process that fails says with which model it decoded, where that is not the timed one.

    Raises:
        ProcessFailed: it failed.
    """
    try:
        yield
    except ProcessFailed as error:
        if not mode.model:
            raise
        named = (
            one.model_copy(update={"message": f"{mode.name}: {one.message}"})
            for one in error.failures
        )
        raise ProcessFailed(tuple(named)) from error


def none_far(bench: Bench, arms: Arms, name: str) -> CheckResult:
    """Whether no stream leaves the reference's by more than a near-tie: all random weights can say.

    They have near-ties everywhere, so none is counted. Arms that compute something else choose
    tokens that the reference finds far less likely: of random-0.6b's the most likely stands 2.8 nat
    above the mean and half of the context lost costs 2.5, while bf16 moves no logit by 0.05.

    Raises:
        ProcessFailed: a process failed.
    """
    mode, policy = _far_mode(bench), bench.spec.policy
    ref, cand = _ask(bench, "ref", arms, mode), _ask(bench, "cand", arms, mode)
    fault = _fault(name, mode, ref, ref, cand, bench)
    if fault is not None:
        return fault
    compared = _with_gaps(bench, arms, mode, compare(mode.name, ref, ref, cand))
    worst = max(compared.divergences, key=lambda one: one.gap, default=None)
    far = wide(compared.divergences, policy)
    parted = len(compared.divergences)
    detail = f"{parted} of {compared.total} streams part on random weights, {len(far)} by more "
    detail += f"than {policy.near_tie_gap_nat} nat"
    where = worst.describe() if worst else ""
    if far or compared.shorter:
        said = (*compared.shorter, f"{len(far)} streams leave the reference's by more than that")
        bad = max(1, len(far), len(compared.shorter))
        counts = (max(0, compared.total - bad), compared.total)
        return failed(name, said[0], where, counts, detail)
    return CheckResult(
        name=name,
        status="passed",
        passed=compared.total,
        total=compared.total,
        where=where,
        detail=detail,
        strongest=ParityClass.LOSSLESS if worst else ParityClass.BYTE_EXACT,
        digest=compared.digest,
    )


def far_tasks(bench: Bench, arms: Arms) -> tuple[Task, ...]:
    """The processes that :func:`none_far` will ask for, unless a stream differs."""
    mode = _far_mode(bench)
    return _token_task(bench, "ref", arms, mode), _token_task(bench, "cand", arms, mode)


def _far_mode(bench: Bench) -> Mode:
    found = modes_of(bench, bench.spec.parameters)
    loaded = next((mode for mode in found if mode.name == "loaded"), found[0])
    few = min(FAR_PROMPTS, bench.limits.prompts)
    return replace(loaded, arguments={**loaded.arguments, "prompts": few})


def _token_task(
    bench: Bench, arm: Literal["ref", "cand"], arms: Arms, mode: Mode, *, repeat: int = 0
) -> Task:
    levers = mode.on(arms).of(arm)
    return bench.task(
        "outputs", arm, levers, mode.arguments, repeat=repeat, parameters=mode.parameters
    )


def _ask(
    bench: Bench, arm: Literal["ref", "cand"], arms: Arms, mode: Mode, *, repeat: int = 0
) -> Outputs:
    levers = mode.on(arms).of(arm)
    return bench.outputs(arm, levers, mode.arguments, repeat=repeat, parameters=mode.parameters)


def _fault(
    name: str, mode: Mode, ref: Outputs, again: Outputs, cand: Outputs, bench: Bench
) -> CheckResult | None:
    """What ends the check before streams are compared."""
    if not any(stream.tokens for stream in ref.streams):
        return empty(name, f"{mode.name}: the reference produced no token")
    if ref.inputs_digest != cand.inputs_digest:
        return empty(name, f"{mode.name}: the processes did not decode the same prompts")
    differing = apart(ref, again)
    if differing and bench.demands_bits:
        total = len(again.streams)
        what = f"reference not deterministic: {len(differing)} of {total} streams differ"
        where = f"prompt {differing[0]} ({mode.name})"
        counts = (total - len(differing), total)
        return reference_fault(name, "not-deterministic", what, where, counts)
    return None


def _with_gaps(bench: Bench, arms: Arms, mode: Mode, compared: Compared) -> Compared:
    """Teacher-force the reference up to each token in question and note its gaps."""
    known = _asked(bench, arms, mode, (*compared.divergences, *compared.endings))
    count = len(compared.divergences)
    return replace(compared, divergences=known[:count], endings=known[count:])


def _asked(bench: Bench, arms: Arms, mode: Mode, asked: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices with the reference's gap at each."""
    if not asked:
        return ()
    prefixes = [[one.prompt, list(one.prefix), one.token] for one in asked]
    wanted = {**mode.arguments, "want": "gaps", "prefixes": prefixes}
    levers = mode.on(arms).ref
    gaps = bench.outputs("ref", levers, wanted, parameters=mode.parameters).gaps
    return tuple(replace(one, gap_nat=gap) for one, gap in zip(asked, gaps, strict=True))
