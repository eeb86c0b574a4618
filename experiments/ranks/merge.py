"""From the results of all ranks to the one result of their arm (pure).

A step ends when its slowest rank has ended it, so that the worst value of any rank is the group's;
throughput counts the tokens of all ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from experiments.ranks.agreement import disagreements
from experiments.ranks.report import RankReport
from experiments.tasks import Measurement, TaskResult
from experiments.values import INPUTS_OVERWRITTEN, Scalar, merged_digests
from levers.policy import Axis

SUMMED_UNITS = ("tok/s",)
"""Units of axes that count the work of all ranks."""


def group_value(axis: Axis, values: Sequence[float]) -> float:
    """One axis of the group: the worst rank's, times the ranks where all of their work counts."""
    worst = min(values) if axis.higher_is_better else max(values)
    return worst * len(values) if axis.unit in SUMMED_UNITS else worst


def best_possible(
    bounds: Mapping[str, float], axes: Sequence[Axis], ranks: int
) -> dict[str, float]:
    """What no implementation can beat, for a group of ``ranks``, from the bounds of one rank."""
    units = {axis.name: axis.unit for axis in axes}
    return {
        name: bound * (ranks if units.get(name) in SUMMED_UNITS else 1)
        for name, bound in bounds.items()
    }


def merged(reports: Sequence[RankReport], axes: Sequence[Axis]) -> TaskResult:
    """The result of the group, from ranks that all did their work."""
    first = reports[0].result
    results = [report.result for report in reports]
    return first.model_copy(
        update={
            "measurement": _measurement(reports, axes),
            "left_changed": tuple(
                f"rank {report.rank}: {text}"
                for report in reports
                for text in report.result.left_changed
            ),
            "disagreements": disagreements(reports),
            "start_s": max(result.start_s for result in results),
            "warmup_s": max(result.warmup_s for result in results),
            "measured_s": max(result.measured_s for result in results),
            "compilations": max(result.compilations for result in results),
            "facts": {**first.facts, "ranks": len(reports), **_compared(reports)},
        }
    )


def _compared(reports: Sequence[RankReport]) -> dict[str, Scalar]:
    """Which tensors the ranks were held against each other in; what is not named was not."""
    kinds = [name.split(": ")[0] for name in reports[0].must_agree if ": " in name]
    return {"ranks_compared": ", ".join(dict.fromkeys(kinds))} if kinds else {}


def _measurement(reports: Sequence[RankReport], axes: Sequence[Axis]) -> Measurement | None:
    found = [one.result.measurement for one in reports if one.result.measurement is not None]
    if len(found) < len(reports):
        return None
    return Measurement(
        values={
            axis.name: group_value(axis, [one.values[axis.name] for one in found])
            for axis in axes
            if axis.name in found[0].values
        },
        raw=_raw(found),
        inputs_digest=merged_digests([one.inputs_digest for one in found]),
        outputs_count=found[0].outputs_count,
        facts={**found[0].facts, **_facts(found)},
    )


def _raw(found: Sequence[Measurement]) -> dict[str, tuple[float, ...]]:
    """The first rank's lists under their own names, and the other ranks' where they differ."""
    raw = dict(found[0].raw)
    for name in found[0].raw:
        lists = [one.raw.get(name, ()) for one in found]
        if any(one != lists[0] for one in lists):
            raw |= {f"{name}/rank{rank}": lists[rank] for rank in range(1, len(lists))}
    return raw


def _facts(found: Sequence[Measurement]) -> dict[str, Scalar]:
    """What a reader wants of each rank: peak memory, waiting, and the share of communication."""
    facts: dict[str, Scalar] = {}
    overwritten = [
        f"{one.facts[INPUTS_OVERWRITTEN]} of rank {rank}"
        for rank, one in enumerate(found)
        if INPUTS_OVERWRITTEN in one.facts
    ]
    if overwritten:
        facts[INPUTS_OVERWRITTEN] = ", ".join(overwritten)
    for rank, one in enumerate(found):
        for name, value in one.values.items():
            if name.startswith("memory/"):
                facts[f"rank{rank}.{name}"] = value
        for name in ("own_step_s", "barrier_s"):
            if one.raw.get(name):
                facts[f"rank{rank}.{name}"] = statistics.median(one.raw[name])
    share = communication_share(found)
    return facts if share is None else {**facts, "communication_share": share}


def communication_share(found: Sequence[Measurement]) -> float | None:
    """Share of the step that communication adds to it, after what overlaps with computing.

    The rest of the step is the slowest rank's forward and backward with gradients kept local, and
    its update without the exchange of weights. None where a rank did not measure these.
    """
    spent = [
        statistics.median(one.raw["compute_s"])
        + max(0.0, statistics.median(one.raw["update_s"]) - statistics.median(one.raw["weights_s"]))
        for one in found
        if {"compute_s", "update_s", "weights_s"} <= set(one.raw)
    ]
    if len(spent) < len(found) or "step_s" not in found[0].raw:
        return None
    step_s = statistics.median(found[0].raw["step_s"])
    return min(1.0, max(0.0, 1.0 - max(spent) / step_s))
