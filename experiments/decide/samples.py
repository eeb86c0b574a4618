"""What makes the samples themselves unfit: lost pairs, and what an arm does to its own figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from experiments.decide.early import invalid
from experiments.decide.evidence import Evidence
from experiments.decide.timed_work import losses_differ, side_by_side, tokens_differ
from experiments.oracle_facts import ORACLE_MODE_FACT
from experiments.plan import LOSS_LIMIT
from experiments.records import Decision, LostPair, Sample
from experiments.stats import binomial_p
from experiments.values import INPUTS_OVERWRITTEN, unlike
from levers.policy import Axis

UNEVEN_P = 0.05
"""Exact binomial p below which losses count as uneven between the arms (design: decisions)."""


def decide_samples(evidence: Evidence) -> Decision | None:
    """Invalid where too many pairs were lost or an arm spoilt its figures, else None."""
    rules: tuple[Callable[[Evidence], Decision | None], ...] = (
        _pairs_lost,
        _uneven_loss,
        _inputs_differ,
        losses_differ,
        tokens_differ,
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
    for one, other in side_by_side(evidence):
        place = f"pair {one.pair}: {one.arm} and {other.arm}"
        if one.inputs_digest != other.inputs_digest:
            apart = unlike(one.inputs_digest, other.inputs_digest) + overwritten_text(one, other)
            return invalid("inputs-differ", f"{place} worked on different inputs ({apart})")
        if one.outputs_count != other.outputs_count and not does_a_part(one, other):
            counts = f"{one.outputs_count} and {other.outputs_count}"
            return invalid(
                "inputs-differ",
                f"{place} did different amounts of work: {counts} outputs; "
                "a shorter answer is no speed-up",
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


def does_a_part(whole: Sample, part: Sample) -> bool:
    """Whether an oracle, measured on some axes alone, did all the work of those.

    Its raw values say so: of each series that it has there are as many as in the reference.
    """
    series = part.raw.keys() & whole.raw.keys()
    fewer_axes = part.arm == "oracle" and part.values.keys() < whole.values.keys()
    as_many = all(len(part.raw[name]) == len(whole.raw[name]) for name in series)
    return fewer_axes and bool(series) and as_many


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
