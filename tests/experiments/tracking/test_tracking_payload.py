from __future__ import annotations

import json
import math

import pytest
from support import records_factory as factory

from experiments.tracking.artifacts import artifacts, samples_csv
from experiments.tracking.payload import NOTE, TAG_CHARACTERS, cut, metric_name, payload


@pytest.mark.parametrize("name", factory.ALL)
def test_every_kind_of_run_has_a_parent_and_both_arms(name: str) -> None:
    record = factory.ALL[name]()
    found = payload(record, "text")
    assert {arm.tags["levergate.arm"] for arm in found.arms} >= {"ref", "cand"}
    assert found.experiment == "fa2_nsplits_cap"
    runs = (found.parent, *found.arms)
    assert all(run.tags["levergate.run_id"] == record.run_id for run in runs)
    assert all(run.start_ms <= run.end_ms for run in runs)
    assert all(math.isfinite(point.value) for run in runs for point in run.metrics)
    assert json.loads(found.model_dump_json())["version"] == record.content_digest()


def test_the_status_says_whether_a_verdict_was_reached() -> None:
    status = {name: payload(make(), "").parent.status for name, make in factory.ALL.items()}
    assert status["default_on"] == status["parity_failed"] == status["inconclusive"] == "FINISHED"
    assert (status["not_engaged"], status["interrupted"]) == ("FAILED", "KILLED")


def test_the_arm_that_failed_is_marked_and_the_other_is_not() -> None:
    arms = {run.tags["levergate.arm"]: run for run in payload(factory.out_of_memory(), "").arms}
    assert (arms["cand"].status, arms["ref"].status) == ("FAILED", "FINISHED")


def test_the_parent_holds_one_step_a_valid_pair_and_the_arms_one_a_sample() -> None:
    found = payload(factory.default_on(), "")
    key = "effect_percent/decode/tok_s/c8"
    steps = {point.step: point.value for point in found.parent.metrics if point.key == key}
    assert sorted(steps) == [pair for pair in range(13) if pair != 4]
    assert steps[0] == pytest.approx(12.3)
    cand = next(arm for arm in found.arms if arm.tags["levergate.arm"] == "cand")
    assert len([point for point in cand.metrics if point.key == "decode/tok_s/c8"]) == 13
    looks = [p.step for p in found.parent.metrics if p.key == "lower_percent/decode/tok_s/c8"]
    assert looks == [6, 9, 13]


def test_no_speed_is_mirrored_beside_a_failed_parity() -> None:
    found = payload(factory.parity_failed(), "")
    keys = {point.key for run in (found.parent, *found.arms) for point in run.metrics}
    assert not [key for key in keys if "tok_s" in key]


def test_a_long_description_is_cut_at_a_line_with_a_pointer() -> None:
    text = "\n".join(f"line {n}" for n in range(3000))
    note = payload(factory.default_on(), text).parent.tags[NOTE]
    assert len(note) <= TAG_CHARACTERS
    kept, _, rest = note.partition("\n\nCut here")
    assert text.startswith(kept + "\n")
    assert "verdict.md" in rest
    assert len(cut("x" * 9000)) == TAG_CHARACTERS
    assert cut("short") == "short"


def test_metric_names_hold_only_what_mlflow_takes() -> None:
    assert metric_name("decode/tok_s/c8") == "decode/tok_s/c8"
    assert metric_name("tok@8,µs") == "tok_8__s"


def test_the_artifacts_are_the_bundle_the_samples_the_environment_and_the_verdict() -> None:
    record = factory.default_on()
    assert set(artifacts(record)) == {
        f"{record.run_id}.levergate.json",
        "samples.csv",
        "environment.json",
        "verdict.json",
    }
    assert "verdict.json" not in artifacts(factory.interrupted())
    lines = samples_csv(record.samples).splitlines()
    assert len(lines) == 1 + len(record.samples)
    assert lines[0].startswith("pair,arm,position")
