"""An oracle that is measured on some axes alone must have done all the work of those."""

from __future__ import annotations

from typing import Any

from support.evidence_factory import C1, C2, evidence, sample

from experiments.decide.samples import decide_samples
from experiments.records import Decision

RAW = {"gaps_ms/c1": (1.0, 2.0), "gaps_ms/c2": (1.0, 2.0)}


def decided(**oracle: Any) -> Decision | None:
    both = {C1: 1.0, C2: 2.0}
    reference = sample(0, "oracle-ref", both, raw=RAW, outputs_count=6)
    other = sample(0, "oracle", **{"values": {C1: 1.0}, "outputs_count": 2, **oracle})
    return decide_samples(evidence(samples=(reference, other), compares_oracle=True))


def test_fewer_axes_with_all_of_their_work_are_compared() -> None:
    assert decided(raw={"gaps_ms/c1": (1.0, 2.0)}) is None


def test_fewer_values_of_an_axis_are_not() -> None:
    found = decided(raw={"gaps_ms/c1": (1.0,)})
    assert found is not None
    assert found.reason == "inputs-differ"
    assert "a shorter answer is no speed-up" in found.detail


def test_the_same_axes_with_less_work_are_not() -> None:
    found = decided(values={C1: 1.0, C2: 1.0}, raw=RAW)
    assert found is not None
    assert found.reason == "inputs-differ"


def test_without_raw_values_nothing_is_shown_and_nothing_is_compared() -> None:
    found = decided()
    assert found is not None
    assert found.reason == "inputs-differ"
