"""A run's record to its decision, from the raw samples up: the same call live and in a replay.

Nothing that was decided or computed before is read: effects, states and looks are rebuilt from the
samples, the policy, the witnesses, the battery, the failures, the faults and the lost pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.decide.early import invalid
from experiments.decide.evidence import Ceiling, Evidence
from experiments.decide.order import decide, decide_before_timing
from experiments.records import Decision, Look, LostPair, Sample
from experiments.run_record import RunRecord
from experiments.states import axis_states
from experiments.stats import PairValues, effect_of, effects_at, paired
from levers.policy import Guard


def decide_again(record: RunRecord) -> Decision:
    """The decision that a record leads to if nothing more is measured.

    A run that was interrupted, and has not been resumed, is invalid unless a look had decided it.
    """
    if record.status == "interrupted":
        found = decide_record(record)
        return found or invalid("interrupted", "the run was interrupted; resume it to go on")
    found = decide_record(record, ended=True)
    assert found is not None, "an ended run always has a decision"
    return found


def decide_record(record: RunRecord, *, ended: bool = False) -> Decision | None:
    """The decision of the first look that gives one, or None where the run must go on.

    Args:
        record: all that is on disk so far.
        ended: no further sample will come (the budget is spent or the plan is done).
    """
    early = decide_before_timing(evidence_of(record, None))
    if early is not None:
        return early
    for look in looks_of(record):
        found = decide(evidence_of(record, look))
        if found is not None:
            return found
    return decide(_at_the_end(record)) if ended else None


def looks_of(record: RunRecord) -> Iterator[Look]:
    """The planned looks that the samples reach, rebuilt one after the other."""
    for index in range(len(record.spec.looks)):
        look = look_at(record, index)
        if look is None:
            return
        yield look


def look_at(record: RunRecord, index: int) -> Look | None:
    """One planned look, rebuilt from the raw samples; None where valid pairs are missing."""
    pairs = paired(record.samples, record.lost)
    spec = record.spec
    if len(pairs) < spec.looks[index]:
        return None
    used = pairs[: spec.looks[index]]
    return _look(record, used, index)


def evidence_of(record: RunRecord, look: Look | None) -> Evidence:
    """What was known of the run at this look; before the first one there are no samples."""
    pairs = paired(record.samples, record.lost)[: look.pairs] if look else ()
    samples = _until(record.samples, pairs)
    return _evidence(record, look, samples, look.lost if look else (), pairs, budget_spent=False)


def _at_the_end(record: RunRecord) -> Evidence:
    """All that was measured, with the effects of the last look that was reached."""
    look = next(reversed(tuple(looks_of(record))), None)
    pairs = paired(record.samples, record.lost)
    return _evidence(record, look, record.samples, record.lost, pairs, budget_spent=True)


def _evidence(
    record: RunRecord,
    look: Look | None,
    samples: tuple[Sample, ...],
    lost: tuple[LostPair, ...],
    pairs: Sequence[PairValues],
    *,
    budget_spent: bool,
) -> Evidence:
    spec = record.spec
    return Evidence(
        policy=spec.policy,
        axes=record.axes,
        looks=spec.looks,
        method=spec.sequential,
        faults=record.faults,
        failures=record.failures,
        witnesses=record.witnesses,
        parity=record.parity,
        samples=samples,
        lost=lost,
        pairs=len(pairs),
        look=look,
        ceilings=_ceilings(record, pairs[: look.pairs], look.index) if look else (),
        impossible=record.impossible,
        compares_oracle=any(target.kind == "oracle" for target in record.targets),
        oracle_mode=record.oracle_mode,
        budget_spent=budget_spent,
        seconds_per_pair=seconds_per_pair(record.samples),
    )


def _look(record: RunRecord, used: tuple[PairValues, ...], index: int) -> Look:
    spec = record.spec
    lost = tuple(one for one in record.lost if one.pair < used[-1].pair)
    samples = _until(record.samples, used)
    primaries = [axis for axis in record.axes if spec.policy.is_primary(axis.name)]
    return Look(
        index=index,
        pairs=len(used),
        effects=effects_at(used, record.axes, spec.looks, index, spec.sequential),
        states=axis_states(
            primaries,
            record.targets,
            spec.policy.untargeted,
            spec.oracle,
            samples,
            record.lost,
            record.failures,
        ),
        lost=lost,
        last=index == len(spec.looks) - 1,
    )


def _until(samples: tuple[Sample, ...], used: Sequence[PairValues]) -> tuple[Sample, ...]:
    """The samples up to the last pair in use; a block's oracle pair runs before its first pair."""
    if not used:
        return ()
    return tuple(sample for sample in samples if sample.pair <= used[-1].pair)


def _ceilings(record: RunRecord, used: Sequence[PairValues], index: int) -> tuple[Ceiling, ...]:
    return tuple(
        _ceiling(record, guard, axis.name, used, index)
        for guard in record.spec.policy.guards
        for axis in record.axes
        if guard.ceiling is not None and guard.covers(axis.name)
    )


def _ceiling(
    record: RunRecord, guard: Guard, axis: str, used: Sequence[PairValues], index: int
) -> Ceiling:
    """How far the candidate's values stay below the ceiling, with the interval of the look."""
    capacity = record.capacities.get(axis)
    values = [pair.cand.get(axis, math.nan) for pair in used]
    if not capacity or not guard.ceiling or not all(0 < value < math.inf for value in values):
        return Ceiling(axis, guard, None)
    room = math.log(guard.ceiling * capacity) - np.log(np.array(values, dtype=np.float64))
    orders = np.array([pair.order for pair in used], dtype=np.float64)
    spec = record.spec
    effect = effect_of(axis, room, orders, spec.looks, index, spec.sequential)
    return Ceiling(axis, guard, effect)


def seconds_per_pair(samples: Sequence[Sample]) -> float | None:
    """Wall-clock of a pair with its share of the oracle runs; None before the first."""
    pairs = {sample.pair for sample in samples if sample.arm in ("ref", "cand")}
    return sum(sample.wall_s for sample in samples) / len(pairs) if pairs else None
