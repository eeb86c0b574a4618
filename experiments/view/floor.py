"""How far a step is from its bandwidth floor, as the samples of a run state it."""

from __future__ import annotations

from experiments.floors import count_of, floors_of
from experiments.run_record import RunRecord

Fact = tuple[str, str]
"""A label and its text."""


def floor_facts(record: RunRecord) -> tuple[Fact, ...]:
    """The medians over the samples of either arm; nothing where a workload states none."""
    ref, cand = (
        floors_of(sample for sample in record.samples if sample.arm == arm)
        for arm in ("ref", "cand")
    )
    parts = [f"{count_of(name)} {ref[name]:.2f} | {cand[name]:.2f}" for name in ref if name in cand]
    return (("x floor (ref | cand)", ", ".join(parts)),) if parts else ()
