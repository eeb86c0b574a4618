"""What the token check asks of the arms' processes: greedy streams, fp64's, and logit gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from experiments.parity.arms import Arms
from experiments.parity.bench import Bench
from experiments.parity.results import empty, reference_fault
from experiments.parity.streams import Choice, Compared, apart
from experiments.parity.token_modes import Mode
from experiments.parity.token_truth import WANT
from experiments.parity_records import CheckResult
from experiments.tasks import Outputs, Task

ArmName: TypeAlias = Literal["ref", "cand"]

SEED = 0
"""Of processes with stored weights, whose fixed prompts are the same for every seed: with one seed
what an earlier comparison decoded is found again."""


def task_of(bench: Bench, arm: ArmName, arms: Arms, mode: Mode, *, repeat: int = 0) -> Task:
    """The process of :func:`ask` with the same arguments."""
    return bench.task(
        "outputs",
        arm,
        mode.on(arms).of(arm),
        mode.arguments,
        repeat=repeat,
        parameters=mode.parameters,
        seed=SEED if mode.model else None,
    )


def ask(bench: Bench, arm: ArmName, arms: Arms, mode: Mode, *, repeat: int = 0) -> Outputs:
    """What one arm leaves in one mode.

    Raises:
        ProcessFailed: the process failed.
    """
    return bench.outputs_of(task_of(bench, arm, arms, mode, repeat=repeat))


def in_double(mode: Mode) -> Mode:
    """The mode's prompts decoded in fp64."""
    return replace(mode, arguments={**mode.arguments, "want": WANT})


def forced(mode: Mode, asked: Sequence[Choice]) -> Mode:
    """The reference teacher-forced up to each token in question."""
    prefixes = [[one.prompt, list(one.prefix), one.token] for one in asked]
    return replace(mode, arguments={**mode.arguments, "want": "gaps", "prefixes": prefixes})


def with_gaps(bench: Bench, arms: Arms, mode: Mode, compared: Compared) -> Compared:
    """What was compared, with the reference's gap at each token in question.

    Raises:
        ProcessFailed: the process failed.
    """
    known = gaps(bench, arms, mode, compared.choices)
    count = len(compared.divergences)
    return replace(compared, divergences=known[:count], endings=known[count:])


def gaps(bench: Bench, arms: Arms, mode: Mode, asked: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices with the reference's gap at each.

    Raises:
        ProcessFailed: the process failed.
    """
    if not asked:
        return ()
    found = ask(bench, "ref", arms, forced(mode, asked)).gaps
    return tuple(replace(one, gap_nat=gap) for one, gap in zip(asked, found, strict=True))


def fault_of(
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
