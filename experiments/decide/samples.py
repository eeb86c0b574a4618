"""What makes the samples themselves unfit: lost pairs, and what an arm does to its own figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from experiments.decide.early import invalid
from experiments.decide.evidence import Evidence
from experiments.oracle_facts import ORACLE_MODE_FACT
from experiments.plan import LOSS_LIMIT
from experiments.records import Arm, Decision, LostPair, Sample
from experiments.stats import binomial_p
from experiments.values import INPUTS_OVERWRITTEN, LOSS, LOSS_ALLOWANCE, TOKENS, unlike
from levers.policy import Axis, ParityClass

STREAMS, APART = 8, 7 / 8
"""Tokens of a timed step are held against the reference's from so many streams on, and more than
this share must differ. In bf16 a stream of random weights may meet a near-tie in one step of six
(the best two of 150,000 logits are that near), so three streams in ten may differ after two steps:
eight of eight then do so in one run of 15,000, and 29 of 32 in none."""

TOLERATED_TIMES = 10
"""How much further the losses of a tolerated candidate may be from the reference's."""

UNEVEN_P = 0.05
"""Exact binomial p below which losses count as uneven between the arms (design: decisions)."""


def decide_samples(evidence: Evidence) -> Decision | None:
    """Invalid where too many pairs were lost or an arm spoilt its figures, else None."""
    rules: tuple[Callable[[Evidence], Decision | None], ...] = (
        _pairs_lost,
        _uneven_loss,
        _inputs_differ,
        _losses_differ,
        _tokens_differ,
        _recompiled,
        _impossible,
        _oracle_mode,
    )
    return next((found for rule in rules if (found := rule(evidence))), None)


def loss_text(lost: tuple[LostPair, ...], pairs: int) -> str:
    """``3 of 10 pairs lost (cand: foreign process x 3)``."""
    ours = [one for one in lost if one.arm in ("ref", "cand")]
    causes = Counter(f"{one.arm}: {one.cause}" for one in ours)
    listed = ", ".join(f"{cause} x {n}" for cause, n in sorted(causes.items()))
    gone = len({one.pair for one in ours})
    return f"{gone} of {gone + pairs} pairs lost ({listed})"


def _pairs_lost(evidence: Evidence) -> Decision | None:
    lost = evidence.lost_pairs
    if lost <= LOSS_LIMIT * (lost + evidence.pairs):
        return None
    text = loss_text(evidence.lost, evidence.pairs)
    return invalid("pairs-lost", f"{text}; at most {LOSS_LIMIT:.0%} may be")


def _uneven_loss(evidence: Evidence) -> Decision | None:
    """Pairs whose two runs were both touched say nothing about either arm."""
    arms: dict[int, set[str]] = {}
    for one in evidence.lost:
        if one.arm in ("ref", "cand"):
            arms.setdefault(one.pair, set()).add(one.arm)
    single = Counter(next(iter(touched)) for touched in arms.values() if len(touched) == 1)
    p = binomial_p(single["ref"], single["cand"])
    if p >= UNEVEN_P:
        return None
    text = loss_text(evidence.lost, evidence.pairs)
    return invalid("uneven-loss", f"{text}: uneven between the arms, exact binomial p = {p:.3g}")


def _inputs_differ(evidence: Evidence) -> Decision | None:
    for one, other in _side_by_side(evidence):
        place = f"pair {one.pair}: {one.arm} and {other.arm}"
        if one.inputs_digest != other.inputs_digest:
            apart = unlike(one.inputs_digest, other.inputs_digest) + overwritten_text(one, other)
            return invalid("inputs-differ", f"{place} worked on different inputs ({apart})")
        if one.outputs_count != other.outputs_count and not _does_a_part(one, other):
            counts = f"{one.outputs_count} and {other.outputs_count}"
            return invalid(
                "inputs-differ",
                f"{place} did different amounts of work: {counts} outputs; "
                "a shorter answer is no speed-up",
            )
    return None


def _losses_differ(evidence: Evidence) -> Decision | None:
    """Losses of the timed steps that are further apart than the same work's can be.

    A candidate that leaves work out while it is timed is right in every check before; its loss is
    not. Where the policy tolerates another result, ten times as much is let through.
    """
    tolerated = evidence.policy.claims is ParityClass.TOLERATED
    for one, other in _side_by_side(evidence):
        allowance = one.telemetry.get(LOSS_ALLOWANCE)
        losses, others = one.raw.get(LOSS, ()), other.raw.get(LOSS, ())
        if not isinstance(allowance, float) or not others:
            continue
        most = allowance * (TOLERATED_TIMES if tolerated else 1)
        for step, (a, b) in enumerate(zip(losses, others, strict=False), 1):
            if abs(a - b) > most * abs(a):
                return invalid(
                    "inputs-differ",
                    f"pair {one.pair}: in timed step {step} {one.arm} has a loss of {a:.6g} and "
                    f"{other.arm} of {b:.6g}, further apart than {most:.1%}: while timed they did "
                    "different work",
                )
    return None


def _tokens_differ(evidence: Evidence) -> Decision | None:
    """Nearly all streams of a timed step elsewhere than the reference's: other work, while timed.

    A near-tie may take one stream elsewhere and does so in every sample of a run. Where the policy
    tolerates another result, tokens say nothing.
    """
    if evidence.policy.claims is ParityClass.TOLERATED:
        return None
    for one, other in _side_by_side(evidence):
        if other.arm != "cand":
            continue
        for name in sorted(one.raw.keys() & other.raw.keys()):
            if not name.startswith(TOKENS):
                continue
            pairs = list(zip(one.raw[name], other.raw[name], strict=False))
            apart = sum(a != b for a, b in pairs)
            if len(pairs) >= STREAMS and apart > APART * len(pairs):
                return invalid(
                    "inputs-differ",
                    f"pair {one.pair}: at {name.removeprefix(TOKENS)} {apart} of {len(pairs)} "
                    "streams have another token in the same timed step, more than near-ties can "
                    "give: while timed the arms did different work",
                )
    return None


def overwritten_text(*samples: Sample) -> str:
    """Which samples' inputs were not as drawn any more after their work; empty where none."""
    found = [
        f"; {parts} overwritten during {one.arm}"
        for one in samples
        if (parts := one.telemetry.get(INPUTS_OVERWRITTEN))
    ]
    return "".join(found)


def _does_a_part(whole: Sample, part: Sample) -> bool:
    """Whether an oracle, measured on some axes alone, did all the work of those.

    Its raw values say so: of each series that it has there are as many as in the reference.
    """
    series = part.raw.keys() & whole.raw.keys()
    fewer_axes = part.arm == "oracle" and part.values.keys() < whole.values.keys()
    as_many = all(len(part.raw[name]) == len(whole.raw[name]) for name in series)
    return fewer_axes and bool(series) and as_many


def _side_by_side(evidence: Evidence) -> Iterator[tuple[Sample, Sample]]:
    """Samples that must have done the same work: both arms, and the oracle where it is one."""
    by_run = {(sample.arm, sample.pair): sample for sample in evidence.samples}
    pairs: list[tuple[Arm, Arm]] = [("ref", "cand")]
    if evidence.compares_oracle:
        pairs.append(("oracle-ref", "oracle"))
    for one, other in pairs:
        for (arm, pair), sample in by_run.items():
            if arm == one and (other, pair) in by_run:
                yield sample, by_run[other, pair]


def _recompiled(evidence: Evidence) -> Decision | None:
    for sample in evidence.samples:
        if sample.compilations:
            return invalid(
                "recompiled",
                f"pair {sample.pair}, {sample.arm}: {sample.compilations} compilations or "
                "autotunings inside the timed part; warm-up must reach all of them",
            )
    return None


def _impossible(evidence: Evidence) -> Decision | None:
    for sample in evidence.samples:
        for axis in evidence.axes:
            bound, value = evidence.impossible.get(axis.name), sample.values.get(axis.name)
            if bound is not None and value is not None and _beats(axis, value, bound):
                return invalid(
                    "impossible-figure",
                    f"pair {sample.pair}, {sample.arm}: {axis.name} = {value:g} {axis.unit} "
                    f"beats {bound:g}, which no implementation can on this device",
                    (axis.name,),
                )
    return None


def _beats(axis: Axis, value: float, bound: float) -> bool:
    return axis.sign * value > axis.sign * bound


def _oracle_mode(evidence: Evidence) -> Decision | None:
    """A weak oracle would make every axis pass or fail for the wrong reason."""
    for sample in evidence.samples:
        ran = str(sample.telemetry.get(ORACLE_MODE_FACT) or "")
        if sample.arm == "oracle" and ran and evidence.oracle_mode not in ("", ran):
            return invalid(
                "oracle-mode",
                f"the oracle ran {ran} where its users run it {evidence.oracle_mode}",
            )
    return None
