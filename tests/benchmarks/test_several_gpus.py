from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks import failing_rank, several_gpus, whole_stack
from benchmarks.several_gpus_page import page, report
from benchmarks.several_gpus_steps import (
    CLOSED_FORM,
    PUBLIC,
    Point,
    efficiency,
    expected_bytes,
    fixed_bytes,
    line,
    memory_of,
    row_of,
    within,
)
from experiments.environment import Device
from experiments.tasks import Measurement, TaskResult
from experiments.workloads.base import DeviceFacts
from levers import catalog
from levers.base import Site
from levers.errors import UsageError

RECORD = Path(__file__).resolve().parents[2] / "docs/results/h200x2/several_gpus.json"
RECORDED = json.loads(RECORD.read_text())
H200 = Device(DeviceFacts("cuda:0", "NVIDIA H200", 141 << 30), "GPU-a")


def point(ranks: int = 8, bs: int = 8) -> Point:
    return Point("slat_flow", ranks, bs, PUBLIC)


def row(ranks: int, step_ms: float, bs: int = 8) -> dict[str, object]:
    values = {"train/step_ms": step_ms, "train/tok_s": 1.0, "memory/peak_bytes": 1e9}
    values |= {"train/mfu_true": 1.0, "train/mfu_matmul": 1.0}
    measured = Measurement(values=values, inputs_digest="x", outputs_count=1)
    return row_of(point(ranks, bs), H200, TaskResult(measurement=measured), 1.0)


def peak(bs: int, gigabytes: float) -> dict[str, object]:
    return {"bs": bs, "values": {"memory/peak_bytes": gigabytes * 1e9}}


def test_more_ranks_hold_fewer_moments_each() -> None:
    config = point().config(H200)
    saved = fixed_bytes(config, 1) - fixed_bytes(config, 8)
    assert saved == pytest.approx(config.parameter_count * 8 * 7 / 8)


def test_without_measured_peaks_the_largest_batch_is_that_of_the_closed_form() -> None:
    room = H200.facts.memory_bytes
    memory = memory_of(point().config(H200), 8, [peak(2, 34.3)])
    found = memory.largest_batch(room)
    assert memory.source == CLOSED_FORM
    assert memory.peak_bytes(found) == pytest.approx(
        expected_bytes(point(bs=found).config(H200), 8)
    )
    assert expected_bytes(point(bs=found).config(H200), 8) <= 0.75 * room
    assert expected_bytes(point(bs=found + 1).config(H200), 8) > 0.75 * room


def test_from_two_measured_peaks_on_the_largest_batch_lies_on_their_line() -> None:
    config, rows = point().config(H200), [peak(2, 30.0), peak(8, 90.0)]
    memory = memory_of(config, 8, rows)
    assert (memory.fixed_bytes, memory.sample_bytes) == pytest.approx((10e9, 10e9))
    assert memory.largest_batch(int(120e9)) == 8
    assert memory.largest_batch(int(134e9)) == 9
    assert memory.largest_batch(int(1e9)) == 1
    assert "bs 2, 8" in memory.source
    failed = row_of(point(bs=12), H200, TaskResult(failure="out-of-memory", message="no"), 1.0)
    assert memory_of(config, 8, [*rows, failed]) == memory
    assert memory_of(config, 8, [peak(2, 30.0), peak(2, 31.0)]).source == CLOSED_FORM
    assert memory_of(config, 8, [peak(2, 30.0), peak(4, 30.0)]).source == CLOSED_FORM


def test_the_recorded_peaks_of_two_gpus_lie_on_one_line() -> None:
    rows = [
        one
        for name, one in RECORDED.items()
        if name.startswith("step slat_flow ranks=2 ") and one["bs"] in (2, 4, 8)
    ]
    room = RECORDED["device"]["memory_bytes"]
    memory = memory_of(point(2).config(H200), 2, rows)
    seven = RECORDED["step slat_flow ranks=2 bs=7"]["values"]["memory/peak_bytes"]
    assert memory.peak_bytes(7) == pytest.approx(seven, rel=0.005)
    found = memory.largest_batch(room)
    assert found > 7
    assert memory.peak_bytes(found) <= 0.75 * room < memory.peak_bytes(found + 1)


def test_the_largest_batch_is_run_and_said_with_its_share_and_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = several_gpus.parsed(["--rehearse", "--out", str(tmp_path), "--ranks", "2"])
    options.rehearsed_bytes = 1000
    book = several_gpus.Book.open(tmp_path, 60)
    for ranks, bs, peak_bytes in ((2, 2, 300), (2, 4, 500), (1, 8, 1)):
        name = f"step slat_flow ranks={ranks} bs={bs}"
        values = {"memory/peak_bytes": float(peak_bytes)}
        known = {"workload": "slat_flow", "ranks": ranks, "bs": bs, "values": values}
        book.write(name, known)
    asked = []

    def taken(_: object, one: Point, __: object) -> dict[str, object]:
        asked.append((one.ranks, one.bs))
        return {"values": {"memory/peak_bytes": 740.0}, "failure": None}

    monkeypatch.setattr(several_gpus, "take", taken)
    assert several_gpus.take_largest(book, "slat_flow", options)
    assert asked == [(2, 6)]
    found = book.found["largest slat_flow"]
    assert (found["expected_share"], found["measured_share"]) == pytest.approx((0.7, 0.74))
    assert several_gpus.take_largest(book, "slat_flow", options)
    assert len(asked) == 1  # it is known
    said = report({"largest slat_flow": found})
    assert "6 a GPU by the line through the peaks measured at bs 2, 4, 70.0 %" in said
    assert "measured 74.0 %, target 75 %" in said


def test_scaling_compares_the_same_batch_on_one_gpu() -> None:
    rows = [row(1, 100.0), row(1, 70.0, bs=4), row(8, 125.0)]
    assert efficiency(rows[2], rows) == pytest.approx(0.8)
    assert efficiency(row(8, 125.0, bs=2), rows) is None


def test_what_is_known_is_on_disk_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = several_gpus.Book.open(tmp_path, 60)
    book.write(point().name, row(8, 125.0))
    again = several_gpus.Book.open(tmp_path, 60)
    monkeypatch.setattr(several_gpus, "measured", lambda *_: pytest.fail("it is known"))
    options = several_gpus.parsed(["--rehearse", "--out", str(tmp_path)])
    assert several_gpus.take(again, point(), options) == json.loads(json.dumps(row(8, 125.0)))


def test_nothing_is_begun_that_the_time_does_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_gpus, "measured", lambda *_: pytest.fail("there is no time"))
    options = several_gpus.parsed(["--rehearse", "--out", str(tmp_path), "--levers", "x=on"])
    book = several_gpus.Book.open(tmp_path, 1)
    assert several_gpus.take(book, point(), options) is None
    assert not several_gpus.take_failure(book, options)


def test_figures_of_other_levers_are_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = several_gpus.Book.open(tmp_path, 60)
    book.write("levers", ["segment_sum_broadcast=on"])
    book.write(point().name, row(8, 125.0))
    words = ["--rehearse", "--out", str(tmp_path), "--ranks", "2"]
    assert several_gpus.main([*words, "--levers", "fused_modulate=on"]) == 2
    assert "take another --out" in capsys.readouterr().out
    options = several_gpus.parsed([*words, "--levers", "a=on", "--ab-levers", "a=on,b=on"])
    assert (options.levers, options.ab_levers) == (["a=on"], ["a=on", "b=on"])
    assert several_gpus.parsed([*words, "--levers", "a=on"]).ab_levers == ["a=on"]


def test_figures_of_another_way_of_zero_are_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = several_gpus.Book.open(tmp_path, 60)
    book.write("levers", [])
    book.write(point().name, row(8, 125.0))
    words = ["--rehearse", "--out", str(tmp_path), "--ranks", "2"]
    assert several_gpus.main([*words, "--set", "zero=deepspeed"]) == 2
    assert "take another --out" in capsys.readouterr().out


def test_one_gpu_is_measured_beside_deepspeeds_zero_without_it() -> None:
    steps = {**PUBLIC, "zero": "deepspeed"}
    one, two = (Point("slat_flow", ranks, 8, steps).config(H200) for ranks in (1, 2))
    assert (one.zero, two.zero) == ("torch", "deepspeed")
    more = fixed_bytes(two, 2) - fixed_bytes(point().config(H200), 2)
    assert more == pytest.approx(4 * two.parameter_count / 2 + 4 * 500_000_000)


def test_the_page_says_who_divided_the_optimisers_state() -> None:
    ours = {**RECORDED, "set": {"zero": "deepspeed"}}
    ours["stack"] = {**RECORDED["stack"], "deepspeed": "0.19.8"}
    assert "One process each, DeepSpeed 0.19.8 with ZeRO-1." in page(ours)
    assert "One process each, DDP and ZeRO-1." in page(RECORDED)


def test_a_run_is_interrupted_at_its_limit_so_that_it_can_go_on() -> None:
    program = "import time\nprint('begun', flush=True)\ntime.sleep(60)"
    assert within([sys.executable, "-c", program], os.environ, 1.0) is None
    assert within([sys.executable, "-c", "print(1)"], os.environ, 30.0) == (0, "1\n", "")


def test_an_ab_that_came_to_no_end_is_told_and_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    words = ["--rehearse", "--ab-levers", "segment_sum_broadcast=on", "--pairs", "2"]
    options = several_gpus.parsed([*words, "--out", str(tmp_path)])
    book = several_gpus.Book.open(tmp_path, 100.0)
    monkeypatch.setattr(several_gpus, "within", lambda *_: (2, "", "2 pairs cannot give a verdict"))
    assert not several_gpus.take_verdict(book, options)
    assert not book.has("verdict")
    assert "2 pairs cannot give a verdict" in capsys.readouterr().out
    answer = json.dumps({"outcome": "gated-OFF", "reason": "regression"})
    monkeypatch.setattr(several_gpus, "within", lambda *_: (0, answer, ""))
    assert several_gpus.take_verdict(book, options)
    assert book.found["verdict"]["outcome"] == "gated-OFF"


def test_without_an_ab_the_figures_are_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_gpus, "within", lambda *_: pytest.fail("no A/B was asked for"))
    words = ["--rehearse", "--levers", "segment_sum_broadcast=on", "--no-ab"]
    options = several_gpus.parsed([*words, "--out", str(tmp_path)])
    assert several_gpus.take_verdict(several_gpus.Book.open(tmp_path, 100.0), options)


def test_a_profile_of_eight_samples_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        several_gpus.parsed(["--set", "steps=3", "profile=measured"])
    assert "use uniform or lognormal" in capsys.readouterr().err


def test_the_page_of_one_gpu_names_its_settings_and_its_largest_batch() -> None:
    record = RECORD.parents[1] / "h200" / "largest_batch.json"
    written = record.with_suffix(".md").read_text()
    assert written == page(json.loads(record.read_text()))
    assert "# The training step on one GPU\n" in written
    assert "optimizer=none steps=3 warmup=2. Levers" in written
    assert "13 a GPU by the line through the peaks measured at bs 4, 8" in written


def test_the_page_beside_the_record_is_what_the_record_says() -> None:
    written = RECORD.with_suffix(".md").read_text()
    assert written == page(RECORDED)
    assert "default-ON whole_stack=on" in written
    assert "a rank that fails: as wanted" in written


def test_the_table_shows_failures_and_the_published_memory() -> None:
    failed = row_of(point(bs=12), H200, TaskResult(failure="out-of-memory", message="no"), 1.0)
    assert "out-of-memory: no" in line(failed, [failed])
    assert " 105 " in line(row(8, 125.0), [])


def test_a_set_of_levers_becomes_one_that_is_bound_to_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = whole_stack.plugin(tmp_path, ["segment_sum_broadcast=on"])
    monkeypatch.setenv("LEVERGATE_LEVERS", str(tmp_path))
    lever = catalog.get(whole_stack.NAME)
    member = catalog.get("segment_sum_broadcast")
    assert lever.touches == member.touches
    assert lever.workloads == member.workloads
    assert "SOURCES" in path.read_text()
    site = Site(member.touches[0], lambda mod, layout: mod)
    found = site.launch
    undo = lever.enable(site, "on")
    assert site.launch is not found
    site.observe("train/tok_s", "backward=X")
    assert lever.witness(site) == {"train/tok_s": "segment_sum_broadcast=on: backward=X x 1"}
    lever.disable(site, undo)
    assert site.launch is found
    assert lever.environment("on") == member.environment("on") == {}  # its processes are forked
    assert (lever.env, member.env) == ("LEVER_WHOLE_STACK", "LEVER_SEGMENT_SUM_BROADCAST")


def test_a_set_may_have_a_name_of_its_own_but_not_a_levers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = ["fused_modulate=on", "fused_gate_residual=on"]
    whole_stack.plugin(tmp_path, members, "block_fusion")
    whole_stack.plugin(tmp_path, members[:1])
    monkeypatch.setenv("LEVERGATE_LEVERS", str(tmp_path))
    lever = catalog.get("block_fusion")
    assert (lever.name, lever.env) == ("block_fusion", "LEVER_BLOCK_FUSION")
    assert lever.summary == " + ".join(members)
    for taken in ("fused_modulate", "block fusion"):
        with pytest.raises(UsageError, match="cannot be named"):
            whole_stack.plugin(tmp_path, members, taken)


def test_a_set_with_an_unknown_lever_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no lever 'nothing'"):
        whole_stack.plugin(tmp_path, ["nothing=on"])


def test_the_failing_lever_fails_on_the_second_rank_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_rank.plugin(tmp_path)
    monkeypatch.setenv("LEVERGATE_LEVERS", str(tmp_path))
    lever = catalog.get(failing_rank.NAME)
    site = Site("flow.block", lambda x: x)
    undo = lever.enable(site, "on")
    monkeypatch.setenv("RANK", "0")
    assert site.launch(3) == 3
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(RuntimeError, match="on purpose"):
        site.launch(3)
    lever.disable(site, undo)
    assert site.launch(3) == 3
