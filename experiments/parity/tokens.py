"""Check 3, ``tokens``: greedy decoding of fixed prompts by both arms, alone and under load.

The reference is run against itself first. *Strict*: every stream of the candidate must be equal.
Otherwise *near-tie*: for a stream that differs the reference is teacher-forced on the common
prefix, and the gap between its own choice and the candidate's says whether the divergence is a
near-tie. Of all streams compared at most ``floor(share x streams)`` may be near-ties, beside as
many as the reference has against itself.

A shorter answer is never a speed-up. Streams that do not part must end at the same token and for
the same reason. After an allowed near-tie the answers go on about different texts, so there the
candidate's own end counts: the reference, forced through the candidate's tokens, must find the stop
a choice of its own or a near-tie, by the same bound (:mod:`experiments.parity.streams`).

Where the comparison names models for its tokens, each of them decodes the prompts in place of the
timed one, in every mode, and each is judged by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from experiments.parity.bench import Arms, Bench, ProcessFailed, concurrencies
from experiments.parity.results import empty, failed, not_run, reference_fault
from experiments.parity.streams import Compared, apart, compare, merge
from experiments.parity.tokens_judge import judge, judged, wide
from experiments.parity_records import CheckResult
from experiments.spec import LeverSetting
from experiments.tasks import Outputs, Task
from experiments.values import Scalar
from levers.policy import ParityClass

NAME = "tokens"
RANDOM_MODEL = "random-"
FEWEST_REPEATED = 4

FAR_PROMPTS = 16
"""Streams that are looked at for a choice that the reference finds far less likely."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of decoding the prompts: alone, under load, or without the captured graph.

    Attributes:
        model: the model in words where it is not the timed one.
        levers: on in both arms with this model.
    """

    name: str
    arguments: Mapping[str, Any]
    parameters: Mapping[str, Scalar]
    model: str = ""
    levers: tuple[LeverSetting, ...] = ()

    def on(self, arms: Arms) -> Arms:
        """The arms with this model's levers in both; one that both have is there once."""
        there = {one.lever for one in (*arms.ref, *arms.cand)}
        more = tuple(one for one in self.levers if one.lever not in there)
        return Arms((*more, *arms.ref), (*more, *arms.cand), arms.name)


def check(bench: Bench) -> CheckResult:
    """Decode the prompts with both arms and classify every stream.

    Raises:
        ProcessFailed: a process failed.
    """
    reason = no_claim(bench)
    return not_run(NAME, reason) if reason else run(bench, bench.alone, NAME)


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for."""
    return () if no_claim(bench) else tasks(bench, bench.alone)


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


def run(bench: Bench, arms: Arms, name: str) -> CheckResult:
    """The whole token check for one pair of lever sets.

    Raises:
        ProcessFailed: a process failed.
    """
    parts: dict[str, list[Compared]] = {}
    for mode in modes(bench):
        with _named(mode):
            found = _mode(bench, arms, mode, name)
        if isinstance(found, CheckResult):
            return found
        parts.setdefault(mode.model, []).append(found)
    policy, strict = bench.spec.policy, bench.strict
    results = {
        model: judge(name, merge(seen), policy, strict=strict) for model, seen in parts.items()
    }
    return judged(name, results)


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
    found = _modes(bench, bench.spec.parameters)
    loaded = next((mode for mode in found if mode.name == "loaded"), found[0])
    few = min(FAR_PROMPTS, bench.limits.prompts)
    return replace(loaded, arguments={**loaded.arguments, "prompts": few})


def modes(bench: Bench) -> tuple[Mode, ...]:
    """Every mode of each model that is named for the tokens, or of the timed one."""
    if not bench.spec.tokens_on:
        return _modes(bench, bench.spec.parameters)
    return tuple(
        replace(mode, name=f"{one.label}, {mode.name}", model=one.label, levers=one.levers)
        for one in bench.spec.tokens_on
        for mode in _modes(bench, one.parameters)
    )


def _modes(bench: Bench, parameters: Mapping[str, Scalar]) -> tuple[Mode, ...]:
    """Alone and at the largest concurrency; also eager where the workload captures a graph."""
    most = max(concurrencies(parameters), default=1)
    alone = Mode("alone", {**_want(bench), "concurrency": 1}, parameters)
    loaded = Mode("loaded", {**_want(bench), "concurrency": most}, parameters)
    found = [alone, loaded] if most > 1 else [alone]
    if parameters.get("graph") == "on":
        found.append(replace(found[-1], name="eager", parameters={**parameters, "graph": "off"}))
    return tuple(found)


def _want(bench: Bench) -> dict[str, Any]:
    return {"want": "tokens", "prompts": bench.limits.prompts}


def repeated(bench: Bench, mode: Mode) -> Mode:
    """What the reference decodes a second time: all prompts where bits matter, else a quarter.

    A stream that was not repeated gets no allowance for the reference's own divergences.
    """
    if bench.strict or bench.demands_bits:
        return mode
    some = min(bench.limits.prompts, max(FEWEST_REPEATED, bench.limits.prompts // 4))
    return replace(mode, arguments={**mode.arguments, "prompts": some})


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
    asked = (*compared.divergences, *compared.endings)
    if not asked:
        return compared
    prefixes = [[one.prompt, list(one.prefix), one.token] for one in asked]
    wanted = {**mode.arguments, "want": "gaps", "prefixes": prefixes}
    levers = mode.on(arms).ref
    gaps = bench.outputs("ref", levers, wanted, parameters=mode.parameters).gaps
    known = tuple(replace(one, gap_nat=gap) for one, gap in zip(asked, gaps, strict=True))
    count = len(compared.divergences)
    return replace(compared, divergences=known[:count], endings=known[count:])
