"""What random weights can say of tokens: whether a stream leaves the reference's by far."""

from __future__ import annotations

from dataclasses import replace

from experiments.parity.arms import Arms
from experiments.parity.bench import Bench
from experiments.parity.results import failed
from experiments.parity.streams import compare
from experiments.parity.token_asking import ask, fault_of, task_of, with_gaps
from experiments.parity.token_modes import Mode, modes_of
from experiments.parity.tokens_judge import wide
from experiments.parity_records import CheckResult
from experiments.tasks import Task
from levers.policy import ParityClass

FAR_PROMPTS = 16
"""Streams that are looked at for a choice that the reference finds far less likely."""


def none_far(bench: Bench, arms: Arms, name: str) -> CheckResult:
    """Whether no stream leaves the reference's by more than a near-tie: all random weights can say.

    They have near-ties everywhere, so none is counted. Arms that compute something else choose
    tokens that the reference finds far less likely: of random-0.6b's the most likely stands 2.8 nat
    above the mean and half of the context lost costs 2.5, while bf16 moves no logit by 0.05.

    Raises:
        ProcessFailed: a process failed.
    """
    mode, policy = _far_mode(bench), bench.spec.policy
    ref, cand = ask(bench, "ref", arms, mode), ask(bench, "cand", arms, mode)
    fault = fault_of(name, mode, ref, ref, cand, bench)
    if fault is not None:
        return fault
    compared = with_gaps(bench, arms, mode, compare(mode.name, ref, ref, cand))
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
    return task_of(bench, "ref", arms, mode), task_of(bench, "cand", arms, mode)


def _far_mode(bench: Bench) -> Mode:
    found = modes_of(bench, bench.spec.parameters)
    loaded = next((mode for mode in found if mode.name == "loaded"), found[0])
    few = min(FAR_PROMPTS, bench.limits.prompts)
    return replace(loaded, arguments={**loaded.arguments, "prompts": few})
