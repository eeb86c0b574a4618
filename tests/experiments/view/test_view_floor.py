"""The step as a multiple of its bandwidth floor, beside the verdict."""

from __future__ import annotations

from support import records_factory as factory

from experiments.floors import floor_facts
from experiments.run_record import RunRecord
from experiments.view.verdict import view


def with_floors() -> RunRecord:
    """A run whose candidate needs a tenth less; its samples scatter around the median."""
    found = factory.default_on()
    samples = []
    for sample in found.samples:
        share = 0.9 if sample.arm == "cand" else 1.0
        ripple = {0: 0.9, 1: 1.0}.get(sample.pair, 1.1 if sample.pair == 2 else 1.0)
        stated = {f"decode/floor_ratio/c{c}": c * share * ripple for c in (1, 2)}
        samples.append(sample.model_copy(update={"telemetry": stated}))
    return found.model_copy(update={"samples": tuple(samples)})


def test_the_medians_of_both_arms_stand_beside_the_verdict() -> None:
    record = with_floors()
    assert floor_facts(record) == (("x floor (ref | cand)", "c1 1.00 | 0.90, c2 2.00 | 1.80"),)
    assert dict(view(record).facts)["x floor (ref | cand)"] == "c1 1.00 | 0.90, c2 2.00 | 1.80"


def test_a_workload_without_a_floor_states_none() -> None:
    assert floor_facts(factory.default_on()) == ()


def test_where_no_speed_is_shown_no_floor_is() -> None:
    assert "x floor (ref | cand)" not in dict(view(factory.parity_failed()).facts)
