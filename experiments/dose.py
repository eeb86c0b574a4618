"""Whether a lever's gain follows the work that it takes over: a control over one parameter.

A lever that replaces launches of an operation can only save the time of those launches. Where a
parameter of the workload leaves it fewer of them (blocks that are not trained, shorter queues), the
saving must fall as their number does; a gain that stays is not the lever's. What is compared are
stored runs and rows of stacks, which differ in that parameter alone.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments import formats
from experiments.records import Effect
from experiments.run_record import RunRecord
from experiments.spec import LeverSetting
from experiments.stack.records import StackRecord
from experiments.values import Scalar
from levers.base import OFF
from levers.policy import Axis

COUNTED = re.compile(r" x (\d+)\b")
"""How a witness says how often a plan ran: ``backward=Index x 180``."""

UNTOLD = (
    *("steps", "warmup", "rounds", "round_steps", "output_tokens", "ttft_tokens", "ttft_repeats"),
    *("threads", "kv_block", "sm_count"),
)
"""Parameters that say how long a sample is, or follow from the device: not what work it is."""

MOST_PLAN = 60
"""Characters of a plan that are shown whole; of a longer one the launches are told."""

AGREES = 1.25
"""Savings of one launch within this factor of each other are the same one: lengths of samples and
neighbours on the device move it by some per cent, another cause would move it by multiples."""


@dataclass(frozen=True, slots=True)
class Dose:
    """One measured gain.

    Attributes:
        source: id of the run or stack.
        key: all that must be the same for two doses to be compared.
        parameters: of the workload.
        launches: of the reference at the lever's sites, in one pass; None where none were counted.
        seconds: of the reference, as its time axis says, in that axis's unit.
        unit: of that axis.
        effect: on the judged axis.
    """

    source: str
    key: tuple[str, ...]
    parameters: Mapping[str, Scalar]
    launches: int | None
    seconds: float
    unit: str
    effect: Effect

    @property
    def saved(self) -> tuple[float, float, float]:
        """Time saved with its interval: what the effect takes off the reference's time."""
        logs = self.effect.estimate, self.effect.lower, self.effect.upper
        estimate, lower, upper = (self.seconds * -math.expm1(-one) for one in logs)
        return estimate, lower, upper


def of_run(record: RunRecord) -> Iterator[Dose]:
    """A decided run against ``off`` whose speed may be shown."""
    spec = record.spec
    axis = _time_axis(record.axes)
    effects = record.looks[-1].effects if record.looks else ()
    judged = next((one for one in effects if spec.policy.is_primary(one.axis)), None)
    if record.status != "decided" or spec.ref != OFF or axis is None or judged is None:
        return
    plans = next((one.plans for one in record.witnesses if one.arm == "ref"), {})
    times = [one.values[axis.name] for one in record.samples if one.arm == "ref"]
    mine = LeverSetting(lever=spec.lever, setting=spec.cand)
    yield Dose(
        source=record.run_id,
        key=_key(mine, spec.workload, record.environment.device_kind, spec.stack),
        parameters=spec.parameters,
        launches=_launches(plans.get(judged.axis, "")),
        seconds=statistics.median(times),
        unit=axis.unit,
        effect=judged,
    )


def of_stack(record: StackRecord) -> Iterator[Dose]:
    """Each lever of a measured waterfall, against the row before it."""
    spec, analysis = record.spec, record.analysis
    axis = _time_axis(record.axes)
    if axis is None:
        return
    for k, (mine, gain) in enumerate(zip(spec.levers, analysis.gains, strict=False)):
        effect = gain.effect(spec.axis)
        if effect is None or axis.name not in analysis.values[k]:
            continue
        plans = record.evidence[k].plans
        yield Dose(
            source=record.stack_id,
            key=_key(mine, spec.workload, record.environment.device_kind, spec.levers[:k]),
            parameters=spec.parameters,
            launches=_launches(plans.get(f"{mine.lever}: {spec.axis}", "")),
            seconds=analysis.values[k][axis.name],
            unit=axis.unit,
            effect=effect,
        )


def taken_over(record: StackRecord) -> tuple[str, ...]:
    """Per lever of a waterfall, what ran at its sites before it was added, and how often."""
    spec = record.spec
    found = []
    for mine, row in zip(spec.levers, record.evidence, strict=False):
        plan = row.plans.get(f"{mine.lever}: {spec.axis}", "")
        launches = _launches(plan)
        if launches is not None and spec.stepwise:
            found.append(f"{mine}: {plan if len(plan) <= MOST_PLAN else f'{launches} launches'}")
    return tuple(found)


def _time_axis(axes: Sequence[Axis]) -> Axis | None:
    """The first axis that is the time of the work itself."""
    return next((one for one in axes if one.unit in ("ms", "s") and not one.higher_is_better), None)


def _launches(plan: str) -> int | None:
    counts = [int(found) for found in COUNTED.findall(plan)]
    return sum(counts) if counts else None


def _key(
    mine: LeverSetting, workload: str, device: str, others: Iterable[LeverSetting]
) -> tuple[str, ...]:
    return (str(mine), workload, device, *sorted(map(str, others)))


# --- over one parameter --------------------------------------------------------------------------


def series(doses: Sequence[Dose], over: str) -> list[list[Dose]]:
    """The groups that differ in one parameter alone, each with the most launches first.

    Of several doses at one value the last one counts; a group of one value says nothing.
    """
    groups: list[list[Dose]] = []
    for one in doses:
        for group in groups:
            if _alike(group[0], one, over):
                group.append(one)
                break
        else:
            groups.append([one])
    found = []
    for group in groups:
        latest = {one.parameters[over]: one for one in group if over in one.parameters}
        if len(latest) > 1:
            found.append(sorted(latest.values(), key=lambda one: -(one.launches or 0)))
    return found


def _alike(one: Dose, other: Dose, over: str) -> bool:
    shared = {*one.parameters} & {*other.parameters} - {over, *UNTOLD}
    return one.key == other.key and all(
        one.parameters[name] == other.parameters[name] for name in shared
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """What a smaller dose says beside the largest.

    Attributes:
        conclusion: ``falls as the launches do``, or how it does not.
        follows: whether the saving is that of its launches.
        text: the figures.
    """

    conclusion: str
    follows: bool
    text: str


def reading(full: Dose, less: Dose, over: str) -> Reading:
    """Hold a dose against the largest of its series."""
    name = f"{over}={less.parameters[over]} against {full.parameters[over]}"
    if not full.launches or less.launches is None:
        return Reading("cannot be said", follows=False, text=f"{name}: no launches were counted")
    if full.effect.lower <= 0:
        text = f"{name}: with all launches {_effect(full.effect)}, so no gain is proven at all"
        return Reading("cannot be said", follows=False, text=text)
    share = less.launches / full.launches
    saved, all_saved = less.saved, full.saved
    expected = all_saved[0] * share
    proportional = -math.log1p(-expected / less.seconds) if expected < less.seconds else math.inf
    text = (
        f"{name}: {less.launches} of {full.launches} launches ({formats.share(share)}); saved "
        f"{saved[0]:.4g} {less.unit} [{saved[1]:.4g}, {saved[2]:.4g}] of {all_saved[0]:.4g} "
        f"({formats.share(saved[0] / all_saved[0])}); gain {_effect(less.effect)}, "
        f"{_effect(full.effect)} with all of them; in proportion it would be "
        f"{formats.percent(proportional)} %"
    )
    near = saved[1] <= AGREES * expected and expected <= AGREES * saved[2]
    if less.effect.upper >= full.effect.lower:
        return Reading("is not proven to fall", follows=False, text=text)
    if not near:
        return Reading("falls, and not as the launches do", follows=False, text=text)
    return Reading("falls as the launches do", follows=True, text=text)


def _effect(effect: Effect) -> str:
    return formats.effect(effect.estimate, effect.lower, effect.upper)


def readings(doses: Sequence[Dose], over: str) -> list[tuple[str, list[Reading]]]:
    """Per series what it is of, and what each smaller dose says."""
    return [
        (" ".join(group[0].key), [reading(group[0], less, over) for less in group[1:]])
        for group in series(doses, over)
    ]
