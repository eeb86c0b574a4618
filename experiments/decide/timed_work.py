"""Whether both arms did the same work while they were timed, by what the timed steps gave.

A candidate that leaves work out only then is right in every check before.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.decide.early import invalid
from experiments.decide.evidence import Evidence
from experiments.records import Arm, Decision, Sample
from experiments.values import LOSS, LOSS_ALLOWANCE, TOKENS
from levers.policy import ParityClass

STREAMS, APART = 8, 7 / 8
"""Tokens of a timed step are held against the reference's from so many streams on, and more than
this share must differ. In bf16 a stream of random weights may meet a near-tie in one step of six
(the best two of 150,000 logits are that near), so three streams in ten may differ after two steps:
eight of eight then do so in one run of 15,000, and 29 of 32 in none."""

TOLERATED_TIMES = 10
"""How much further the losses of a tolerated candidate may be from the reference's."""


def side_by_side(evidence: Evidence) -> Iterator[tuple[Sample, Sample]]:
    """Samples that must have done the same work: both arms, and the oracle where it is one."""
    by_run = {(sample.arm, sample.pair): sample for sample in evidence.samples}
    pairs: list[tuple[Arm, Arm]] = [("ref", "cand")]
    if evidence.compares_oracle:
        pairs.append(("oracle-ref", "oracle"))
    for one, other in pairs:
        for (arm, pair), sample in by_run.items():
            if arm == one and (other, pair) in by_run:
                yield sample, by_run[other, pair]


def losses_differ(evidence: Evidence) -> Decision | None:
    """Invalid where losses of a timed step are further apart than the same work's can be.

    Where the policy tolerates another result, ten times as much is let through.
    """
    times = TOLERATED_TIMES if _tolerates(evidence) else 1
    for one, other in side_by_side(evidence):
        allowance = one.telemetry.get(LOSS_ALLOWANCE)
        if not isinstance(allowance, float):
            continue
        losses = zip(one.raw.get(LOSS, ()), other.raw.get(LOSS, ()), strict=False)
        for step, (a, b) in enumerate(losses, 1):
            if abs(a - b) > times * allowance * abs(a):
                return invalid(
                    "inputs-differ",
                    f"pair {one.pair}: in timed step {step} {one.arm} has a loss of {a:.6g} and "
                    f"{other.arm} of {b:.6g}, further apart than {times * allowance:.1%}: while "
                    "timed they did different work",
                )
    return None


def tokens_differ(evidence: Evidence) -> Decision | None:
    """Invalid where nearly all streams of a timed step go elsewhere than the reference's.

    A near-tie may take one stream elsewhere and does so in every sample of a run. Where the policy
    tolerates another result, tokens say nothing.
    """
    if _tolerates(evidence):
        return None
    for one, other in side_by_side(evidence):
        for name, apart, streams in _apart(one, other):
            if streams >= STREAMS and apart > APART * streams:
                return invalid(
                    "inputs-differ",
                    f"pair {one.pair}: at {name} {apart} of {streams} streams have another token "
                    "in the same timed step, more than near-ties can give: while timed the arms "
                    "did different work",
                )
    return None


def _tolerates(evidence: Evidence) -> bool:
    return evidence.policy.claims is ParityClass.TOLERATED


def _apart(one: Sample, other: Sample) -> Iterator[tuple[str, int, int]]:
    """Of each series of tokens that a candidate shares: name, streams that differ, streams."""
    if other.arm != "cand":
        return
    for name in sorted(one.raw.keys() & other.raw.keys()):
        if name.startswith(TOKENS):
            pairs = list(zip(one.raw[name], other.raw[name], strict=False))
            yield name.removeprefix(TOKENS), sum(a != b for a, b in pairs), len(pairs)
