from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.ranks.merge import best_possible, communication_share, group_value, merged
from experiments.ranks.report import RankReport
from experiments.tasks import Measurement, TaskResult
from levers.policy import Axis

TOK_S = Axis("train/tok_s", "tok/s", higher_is_better=True)
STEP = Axis("train/step_ms", "ms", higher_is_better=False)
MFU = Axis("train/mfu_true", "%", higher_is_better=True)
PEAK = Axis("memory/peak_bytes", "B", higher_is_better=False)
AXES = (TOK_S, STEP, MFU, PEAK)


def report(rank: int, step_s: float, peak: float = 1.0, **changes: Any) -> RankReport:
    raw = changes.pop("raw", {"step_s": (step_s,), "own_step_s": (step_s,)})
    values = {TOK_S.name: 10 / step_s, STEP.name: 1e3 * step_s, MFU.name: 1 / step_s}
    measured = Measurement(
        values={**values, PEAK.name: peak},
        raw=raw,
        inputs_digest=f"shard {rank}",
        outputs_count=1,
    )
    result = TaskResult(measurement=measured, **changes)
    return RankReport(rank=rank, result=result, ended=0.0)


def values(*reports: RankReport) -> dict[str, float]:
    measured = merged(reports, AXES).measurement
    assert measured is not None
    return dict(measured.values)


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=8))
def test_the_slowest_rank_is_the_groups_time_and_all_tokens_count(times: list[float]) -> None:
    found = values(*(report(rank, time_s) for rank, time_s in enumerate(times)))
    assert found[STEP.name] == pytest.approx(1e3 * max(times))
    assert found[TOK_S.name] == pytest.approx(len(times) * 10 / max(times))
    assert found[MFU.name] == pytest.approx(1 / max(times))


@given(st.lists(st.floats(1, 1e9), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_ranks_changes_no_value(numbers: list[float], random: Any) -> None:
    shuffled = random.sample(numbers, len(numbers))
    for axis in AXES:
        assert group_value(axis, numbers) == group_value(axis, shuffled)


def test_the_fullest_device_is_the_groups_memory_and_each_is_named() -> None:
    result = merged([report(0, 1.0, 5.0), report(1, 1.0, 7.0)], AXES)
    assert result.measurement is not None
    assert result.measurement.values[PEAK.name] == 7.0
    assert result.measurement.facts["rank0.memory/peak_bytes"] == 5.0
    assert result.measurement.facts["rank1.memory/peak_bytes"] == 7.0


def test_what_no_rank_can_beat_no_group_of_them_can() -> None:
    bounds = {TOK_S.name: 100.0, STEP.name: 2.0, MFU.name: 100.0}
    assert best_possible(bounds, AXES, 8) == {**bounds, TOK_S.name: 800.0}
    assert best_possible(bounds, AXES, 1) == bounds


def test_inputs_of_a_group_are_those_of_all_its_ranks_in_order() -> None:
    one = merged([report(0, 1.0), report(1, 1.0)], AXES).measurement
    other = merged([report(1, 1.0), report(0, 1.0)], AXES).measurement
    assert one is not None
    assert other is not None
    assert one.inputs_digest != other.inputs_digest


def test_the_longest_waits_and_the_most_compilations_count() -> None:
    one = report(0, 1.0, start_s=1.0, warmup_s=4.0, compilations=0)
    other = report(1, 1.0, start_s=3.0, warmup_s=2.0, compilations=2)
    found = merged([one, other], AXES)
    assert (found.start_s, found.warmup_s, found.compilations) == (3.0, 4.0, 2)


def test_what_a_rank_left_changed_is_named_with_the_rank() -> None:
    found = merged([report(0, 1.0), report(1, 1.0, left_changed=("flag: 0 -> 1",))], AXES)
    assert found.left_changed == ("rank 1: flag: 0 -> 1",)


def test_communication_is_what_the_step_takes_beyond_the_slowest_ranks_own_work() -> None:
    def raw(compute_s: float) -> dict[str, tuple[float, ...]]:
        parts = {"compute_s": (compute_s,), "update_s": (0.2,), "weights_s": (0.1,)}
        return {"step_s": (1.0,), **parts}

    reports = [report(0, 1.0, raw=raw(0.5)), report(1, 1.0, raw=raw(0.7))]
    found = [one.result.measurement for one in reports]
    assert communication_share([one for one in found if one]) == pytest.approx(0.2)


def test_a_share_that_was_not_measured_is_not_made_up() -> None:
    found = [report(0, 1.0).result.measurement, report(1, 1.0).result.measurement]
    assert communication_share([one for one in found if one]) is None
