"""What the refusal of a pair says whose arms did not work on the same inputs."""

from __future__ import annotations

from support.evidence_factory import C1, evidence, sample

from experiments.decide.samples import decide_samples
from experiments.values import INPUTS_OVERWRITTEN


def detail(digest: str, **facts: str) -> str:
    mine = sample(0, "ref", {C1: 1.0}, inputs_digest="clean:31f2 noise:77ab")
    other = sample(0, "cand", {C1: 1.0}, inputs_digest=digest, telemetry=facts)
    found = decide_samples(evidence(samples=(mine, other)))
    assert found is not None
    assert found.reason == "inputs-differ"
    return found.detail


def test_the_part_that_differs_is_named() -> None:
    assert detail("clean:31f2 noise:0000").endswith("worked on different inputs (noise)")


def test_an_arm_that_wrote_into_its_inputs_is_named() -> None:
    said = detail("clean:31f2 noise:0000", **{INPUTS_OVERWRITTEN: "noise"})
    assert said.endswith("(noise; noise overwritten during cand)")
