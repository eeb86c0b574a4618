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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from experiments.parity.arms import Arms
from experiments.parity.bench import Bench, ProcessFailed
from experiments.parity.results import empty, not_run
from experiments.parity.streams import Choice, Compared, compare, later, merge
from experiments.parity.token_asking import (
    ask,
    fault_of,
    forced,
    gaps,
    in_double,
    task_of,
    with_gaps,
)
from experiments.parity.token_modes import NO_LOADS, Mode, modes, repeated
from experiments.parity.token_truth import FromTruth, of_arms
from experiments.parity.tokens_judge import asks_truth, judge, judged, may_ask_truth
from experiments.parity_records import CheckResult
from experiments.spec import TokenModel
from experiments.tasks import Task
from experiments.workloads.base import DecodesInDouble

NAME = "tokens"
RANDOM_MODEL = "random-"

OF_CONCURRENCY = re.compile(r"/c(\d+)$")
"""The end of an axis that belongs to one concurrency."""


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
            task_of(bench, "ref", arms, mode),
            task_of(bench, "ref", arms, repeated(bench, mode), repeat=1),
            task_of(bench, "cand", arms, mode),
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
    bench.soon(task for seen in parts.values() for task in _questions(bench, arms, seen))
    results = {}
    for model, seen in parts.items():
        answered = []
        for mode, compared in seen:
            with _named(mode):
                answered.append(with_gaps(bench, arms, mode, compared))
        whole = merge(answered)
        with _named(seen[-1][0]):
            truth = _truth(bench, arms, [mode for mode, _ in seen], whole)
        results[model] = judge(name, whole, bench.spec.policy, strict=bench.strict, truth=truth)
    return judged(name, results)


def _questions(bench: Bench, arms: Arms, seen: Sequence[tuple[Mode, Compared]]) -> Iterator[Task]:
    """What is left to ask about one model's streams, as far as they show it by themselves."""
    for mode, compared in seen:
        if compared.choices:
            yield task_of(bench, "ref", arms, forced(mode, compared.choices))
    whole = merge([compared for _, compared in seen])
    if _has_truth(bench) and may_ask_truth(whole, bench.spec.policy, strict=bench.strict):
        loaded = _loaded(mode for mode, _ in seen)
        yield task_of(bench, "ref", arms, in_double(loaded))
        if asked := _later(bench, arms, loaded):
            yield task_of(bench, "ref", arms, forced(loaded, asked))


def _has_truth(bench: Bench) -> bool:
    return isinstance(bench.workload, DecodesInDouble)


def _loaded(seen: Iterable[Mode]) -> Mode:
    """The mode in which streams are whole."""
    return max(seen, key=lambda mode: int(mode.arguments["concurrency"]))


def _later(bench: Bench, arms: Arms, loaded: Mode) -> list[Choice]:
    """Tokens behind near-ties, of streams that both arms have decoded."""
    ref, cand = ask(bench, "ref", arms, loaded), ask(bench, "cand", arms, loaded)
    return later(loaded.name, ref, cand)


def _truth(bench: Bench, arms: Arms, seen: Sequence[Mode], compared: Compared) -> FromTruth | None:
    """How often each arm leaves fp64's streams, where that is asked and the workload has them.

    Under load, where streams are whole, and each prompt once.
    """
    asked = asks_truth(compared, bench.spec.policy, strict=bench.strict)
    if not asked or not _has_truth(bench):
        return None
    loaded = _loaded(seen)
    truth = ask(bench, "ref", arms, in_double(loaded))
    ref, cand = ask(bench, "ref", arms, loaded), ask(bench, "cand", arms, loaded)
    found = of_arms(ref, cand, truth)
    if not found.tells or found.further:
        return found
    return replace(found, later=gaps(bench, arms, loaded, _later(bench, arms, loaded)))


def _mode(bench: Bench, arms: Arms, mode: Mode, name: str) -> Compared | CheckResult:
    """The streams of one mode side by side, or what ends the check."""
    ref = ask(bench, "ref", arms, mode)
    again = ask(bench, "ref", arms, repeated(bench, mode), repeat=1)
    cand = ask(bench, "cand", arms, mode)
    return fault_of(name, mode, ref, again, cand, bench) or compare(mode.name, ref, again, cand)


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
