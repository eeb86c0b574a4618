"""How many times its bandwidth floor a step takes, as samples state it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from experiments.records import Sample
from experiments.run_record import RunRecord

Fact = tuple[str, str]
"""A label and its text."""

FLOOR = "/floor_ratio/"
"""Part of the names of facts that state a time as a multiple of its floor."""


def floors_of(samples: Iterable[Sample]) -> dict[str, float]:
    """The median over the samples that state one, by the fact's name; empty where none does."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.telemetry.items():
            if FLOOR in name and isinstance(value, int | float):
                found.setdefault(name, []).append(float(value))
    return {name: statistics.median(values) for name, values in found.items()}


def count_of(name: str) -> str:
    """The last part of a fact's name, which says where it was taken: ``c8``."""
    return name.rpartition("/")[2]


def floor_facts(record: RunRecord) -> tuple[Fact, ...]:
    """The medians over the samples of either arm; nothing where a workload states none."""
    ref, cand = (
        floors_of(sample for sample in record.samples if sample.arm == arm)
        for arm in ("ref", "cand")
    )
    parts = [f"{count_of(name)} {ref[name]:.2f} | {cand[name]:.2f}" for name in ref if name in cand]
    return (("x floor (ref | cand)", ", ".join(parts)),) if parts else ()
