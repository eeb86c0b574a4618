"""Calibrations and plans as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments import formats
from experiments.calibration.records import Calibration, Rate
from experiments.calibration.verdict_plan import GuardCost, VerdictPlan

MOST_NAMES = 2
"""Levers of one policy that are named."""


def print_calibration(console: Console, found: Calibration) -> None:
    """The false-verdict rate of each policy, then the noise of each axis."""
    here = found.environment
    console.print(
        f"[bold]calibration[/] {found.calibration_id}: {escape(found.workload)} on "
        f"{escape(here.device_kind)} ({escape(here.host)}), {found.pairs} A/A pairs, "
        f"{formats.duration(found.seconds_per_pair)} a pair"
    )
    for one in found.rates:
        ends = ", ".join(
            f"{name} {formats.share(share)}"
            for name, share in sorted(one.ends.items(), key=lambda item: -item[1])
        )
        console.print(f"under the policy of {escape(_names(one.levers))}:")
        console.print(
            f"  [bold]false verdicts {_rate(one.false)}[/], of these ON {_rate(one.wins)}"
        )
        console.print(f"  equal arms end as {ends}; after {one.mean_pairs:.1f} pairs on average")
    shown = _shown(found.looks)
    noise = _table(
        "axis",
        "noise s",
        "second run",
        "lag-1",
        *(f"seen at {found.looks[i]}" for i in shown),
        "80 % power",
    )
    for axis in found.noise:
        noise.add_row(
            escape(axis.axis),
            _percent(axis.sd),
            f"{axis.position * 100:+.2g} %",
            f"{axis.lag_one:+.2f}",
            *(_percent(axis.visible[i]) for i in shown),
            _percent(axis.seen_at_80),
        )
    console.print(noise)
    for text in found.warnings:
        console.print(f"[yellow]warning[/] {escape(text)}")


def print_plan(console: Console, plan: VerdictPlan) -> None:
    """The answer in one line, then power by look and the guards."""
    console.print(f"[bold]{escape(plan.lever)}[/] on {escape(plan.workload)}: {answer(plan)}")
    axes = ", ".join(plan.on)
    console.print(
        f"assumed {formats.percent(plan.effect)} % on {escape(axes)}, failing; noise from "
        f"{escape(plan.source)}"
    )
    looks = _table("look", "minutes", "a verdict", "ships ON", "a verdict without guards")
    for look in plan.looks:
        looks.add_row(
            formats.count(look.pairs, "pair"),
            f"{look.minutes:.1f}",
            formats.share(look.verdict),
            formats.share(look.on),
            formats.share(look.verdict_without_guards),
        )
    console.print(looks)
    guards = _table("guard", "margin", "noise s", "proven from")
    for guard in plan.guards:
        guards.add_row(
            escape(guard.axis), formats.margin(guard.margin), _percent(guard.sd), _pairs(guard)
        )
    console.print(guards)
    ends = ", ".join(f"{name} {formats.share(share)}" for name, share in plan.ends.items())
    console.print(f"ends: {ends}; the guards add {plan.guard_pairs:.1f} pairs on average")
    for note in plan.notes:
        console.print(f"[yellow]note[/] {escape(note)}")


def answer(plan: VerdictPlan) -> str:
    """How many pairs and minutes, in one sentence."""
    mean = f"{plan.mean_pairs:.0f} pairs, {formats.duration(plan.mean_minutes * 60)} on average"
    if plan.likely_pairs is None or plan.likely_minutes is None:
        share = plan.looks[-1].verdict
        likely = f"only {share:.0%} of runs have a verdict by {plan.looks[-1].pairs} pairs"
    else:
        within = formats.duration(plan.likely_minutes * 60)
        likely = f"nine of ten runs end within {plan.likely_pairs} pairs, {within}"
    battery = "the parity battery"
    known = (
        "" if plan.battery_s is None else f" ({formats.duration(plan.battery_s)} in its last run)"
    )
    return f"{mean}; {likely}; {battery} apart{known}"


def _names(levers: Sequence[str]) -> str:
    """The first levers of a policy, and how many more."""
    more = len(levers) - MOST_NAMES
    shown = ", ".join(levers[:MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _pairs(guard: GuardCost) -> str:
    return "no number of pairs" if guard.pairs is None else formats.count(guard.pairs, "pair")


def _shown(looks: tuple[int, ...]) -> tuple[int, ...]:
    """The first, a middle and the last look."""
    return tuple(dict.fromkeys((0, len(looks) // 2, len(looks) - 1)))


def _rate(rate: Rate) -> str:
    low, high = rate.lower * 100, rate.upper * 100
    return f"{formats.share(rate.rate)} [{low:.1f}, {high:.1f}]"


def _percent(value: float) -> str:
    return f"{value * 100:.2g} %"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        table.add_column(name, no_wrap=number == 0)
    return table
