"""Whether the reference misses a primary axis's target, from runs that no effect is made of.

Each block has one oracle pair: the oracle and a reference run of its own. The state is read from
the 95 % t interval of log(reference / target) over these pairs: failing where it lies below 0,
passing where it does not reach below 0, and undecided otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from experiments import formats
from experiments.oracle_facts import ORACLE_MODE_FACT
from experiments.records import ArmFailure, AxisState, LostPair, Sample, StateName
from experiments.workloads.base import Target
from levers.policy import Axis

LEVEL_P = 0.05
"""Two-sided p of a state's interval (design: decisions, section 1)."""

LARGEST_EXPONENT = 700.0
"""Factors are shown up to e^700, below the largest double (e^709)."""


def axis_states(
    primaries: Iterable[Axis],
    targets: Sequence[Target],
    untargeted: Literal["wanted", "ignored"],
    oracle: str | None,
    samples: Sequence[Sample],
    lost: Sequence[LostPair] = (),
    failures: Sequence[ArmFailure] = (),
) -> tuple[AxisState, ...]:
    """The state of each primary axis from the oracle pairs among the samples.

    Args:
        primaries: the axes where a win counts.
        targets: the workload's targets; an axis without one is wanted or ignored.
        untargeted: what an axis without a target counts as.
        oracle: name of the oracle that runs in the blocks.
        samples: all samples so far; only the arms ``oracle`` and ``oracle-ref`` are read.
        lost: lost runs; an oracle pair with one is left out.
        failures: an oracle that could not run is named as the reason why there is no state.
    """
    by_axis = {target.axis: target for target in targets}
    pairs = oracle_pairs(samples, lost)
    missing = _why_missing(oracle, pairs, failures)
    return tuple(
        AxisState(axis=axis.name, state=untargeted)
        if axis.name not in by_axis
        else _state(axis, by_axis[axis.name], oracle or "", pairs, missing)
        for axis in primaries
    )


def oracle_pairs(
    samples: Sequence[Sample], lost: Sequence[LostPair] = ()
) -> tuple[tuple[Sample, Sample], ...]:
    """The complete oracle pairs (reference run, oracle run) in order, lost ones left out."""
    gone = {one.pair for one in lost if one.arm in ("oracle", "oracle-ref")}
    reference = {s.pair: s for s in samples if s.arm == "oracle-ref"}
    oracle = {s.pair: s for s in samples if s.arm == "oracle"}
    both = sorted(reference.keys() & oracle.keys() - gone)
    return tuple((reference[pair], oracle[pair]) for pair in both)


def _why_missing(
    oracle: str | None,
    pairs: Sequence[tuple[Sample, Sample]],
    failures: Sequence[ArmFailure],
) -> str:
    name = formats.shortened(oracle or "")
    for failure in failures:
        if failure.arm == "oracle":
            return f"oracle {name} {failure.kind} at {failure.stage}: {failure.message}"
    if oracle is None:
        return "the target is a ratio to an oracle and none was measured"
    return "" if pairs else f"no complete pair with the oracle {name} was measured"


def _state(
    axis: Axis,
    target: Target,
    oracle: str,
    pairs: Sequence[tuple[Sample, Sample]],
    missing: str,
) -> AxisState:
    values = [_log_ratio(axis, reference, outside) for reference, outside in pairs]
    known = [value for value in values if value is not None]
    mode = str(pairs[0][1].telemetry.get(ORACLE_MODE_FACT) or "") if pairs else ""
    if missing or not known:
        return AxisState(
            axis=axis.name,
            state="undecided",
            target=target.describe(formats.shortened(oracle or target.kind)),
            oracle=oracle,
            oracle_mode=mode,
            missing=missing or f"the oracle {formats.shortened(oracle)} reports no {axis.name}",
        )
    centre = float(np.mean(known)) - math.log(target.ratio)
    half = _half_width(known)
    return AxisState(
        axis=axis.name,
        state=_named(centre - half, centre + half),
        target=target.describe(formats.shortened(oracle)),
        ratio=_factor(centre),
        lower=_factor(centre - half),
        upper=_factor(centre + half),
        runs=len(known),
        oracle=oracle,
        oracle_mode=mode,
    )


def _log_ratio(axis: Axis, reference: Sample, oracle: Sample) -> float | None:
    """Log of reference over oracle, > 0 where the reference is better; None where undefined."""
    one, other = reference.values.get(axis.name), oracle.values.get(axis.name)
    if one is None or other is None or not (0 < one < math.inf and 0 < other < math.inf):
        return None
    return axis.sign * (math.log(one) - math.log(other))


def _half_width(values: Sequence[float]) -> float:
    n = len(values)
    if n < 2:
        return math.inf
    return float(stdtrit(n - 1, 1 - LEVEL_P / 2)) * float(np.std(values, ddof=1)) / math.sqrt(n)


def _named(lower: float, upper: float) -> StateName:
    if upper < 0:
        return "failing"
    return "passing" if lower >= 0 else "undecided"


def _factor(log_ratio: float) -> float:
    return math.exp(max(-LARGEST_EXPONENT, min(LARGEST_EXPONENT, log_ratio)))
