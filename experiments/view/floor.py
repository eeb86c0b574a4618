"""How far a step is from its bandwidth floor, as the samples of a run state it."""

from __future__ import annotations

import statistics

from experiments.records import Arm
from experiments.run_record import RunRecord

Fact = tuple[str, str]
"""A label and its text."""

FLOOR = "/floor_ratio/"
"""Part of the names of facts that state a time as a multiple of its floor."""


def floor_facts(record: RunRecord) -> tuple[Fact, ...]:
    """The medians over the samples of either arm; nothing where a workload states none."""
    ref, cand = _medians(record, "ref"), _medians(record, "cand")
    parts = [
        f"{name.rpartition('/')[2]} {ref[name]:.2f} | {cand[name]:.2f}"
        for name in ref
        if name in cand
    ]
    return (("x floor (ref | cand)", ", ".join(parts)),) if parts else ()


def _medians(record: RunRecord, arm: Arm) -> dict[str, float]:
    stated: dict[str, list[float]] = {}
    for sample in record.samples:
        for name, value in sample.telemetry.items() if sample.arm == arm else ():
            if FLOOR in name and value is not None:
                stated.setdefault(name, []).append(float(value))
    return {name: statistics.median(values) for name, values in stated.items()}
