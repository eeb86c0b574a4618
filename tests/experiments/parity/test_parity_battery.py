from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.parity import sanitizer_tool
from experiments.parity.battery import CHECKS, Battery
from experiments.parity.cache import ParityCache
from experiments.parity.results import failed
from experiments.parity_records import CheckResult, ParityReport
from experiments.records import ArmFailure
from experiments.spec import AbSpec, LeverSetting
from experiments.tasks import Task, TaskResult
from levers.policy import ParityClass, Tolerance
from tests.support.fake_arms import FakeArms, FakeLever, FakeWorkload, for_arm, passed, spec

NAMES = [name for name, _ in CHECKS]


def battery(
    arms: FakeArms,
    asked: AbSpec | None = None,
    cache: ParityCache | None = None,
    workload: FakeWorkload | None = None,
) -> tuple[ParityReport, tuple[ArmFailure, ...], list[CheckResult]]:
    heard: list[CheckResult] = []
    asked = asked or spec()
    whole = Battery.of(asked, FakeLever(), workload or FakeWorkload(), arms, cache)
    report, failures = whole.run(heard.append)
    return report, failures, heard


def test_all_checks_run_in_the_order_of_the_design_and_are_told_one_by_one() -> None:
    report, failures, heard = battery(FakeArms())
    assert [check.name for check in report.checks] == NAMES
    assert NAMES[:4] == ["op", "determinism", "tokens", "loss"]
    assert tuple(heard) == report.checks
    assert failures == ()
    assert report.measured is ParityClass.BYTE_EXACT


def test_a_run_is_never_promoted_above_its_claim() -> None:
    report, _, _ = battery(FakeArms())
    assert report.parity_class is ParityClass.LOSSLESS


def test_a_broken_candidate_stops_the_battery_and_the_rest_is_named() -> None:
    broken = failed("op", "error 3x the reference's", "case", (2, 3))
    report, _, _ = battery(FakeArms(checks={"op": broken}))
    assert report.parity_class is ParityClass.BROKEN
    assert [check.status for check in report.checks] == ["failed"] + ["not-run"] * 9
    assert report.checks[1].detail == "not reached: op is failed"


def test_a_class_weaker_than_demanded_stops_the_battery() -> None:
    plant = for_arm("cand", digests={"logits": "other", "state": "bb"})
    report, _, _ = battery(FakeArms(plant), spec(claims=ParityClass.BYTE_EXACT))
    assert report.measured is ParityClass.LOSSLESS
    assert "byte-exact is demanded" in report.checks[2].detail


def test_a_process_that_fails_ends_the_battery_as_a_failure_of_its_arm() -> None:
    def fails(task: Task) -> TaskResult | None:
        if task.arm == "cand" and task.kind == "measure":
            return TaskResult(failure="hung", stage="measure", message="time limit")
        return None

    report, failures, _ = battery(FakeArms(fails=fails))
    assert [(one.arm, one.kind) for one in failures] == [("cand", "hung")]
    statuses = {check.name: check.status for check in report.checks}
    assert (statuses["async"], statuses["smoke"], statuses["rollback"]) == (
        "passed",
        "not-run",
        "not-run",
    )


def no_op_case() -> CheckResult:
    return CheckResult(name="op", status="not-run", passed=0, total=0, detail="no case")


def test_without_fp64_truth_a_candidate_that_differs_is_not_called_lossless() -> None:
    plant = for_arm("cand", digests={"logits": "other", "state": "bb"})
    workload = FakeWorkload(("op", "determinism"))
    arms = FakeArms(plant, checks={"op": no_op_case()})
    report, _, _ = battery(arms, workload=workload)
    assert report.measured is ParityClass.TOLERATED
    tolerant = spec(claims=ParityClass.TOLERATED, tolerance=Tolerance(1e-2, "planted"))
    report, _, _ = battery(arms, tolerant, workload=workload)
    assert report.parity_class is ParityClass.TOLERATED


def test_without_fp64_truth_equal_bits_are_still_equal_bits() -> None:
    arms = FakeArms(checks={"op": no_op_case()})
    report, _, _ = battery(arms, workload=FakeWorkload(()))
    assert report.measured is ParityClass.BYTE_EXACT


# --- the cache --------------------------------------------------------------------------------


def test_a_passed_check_is_found_again_and_says_so(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "torch 2.13")
    battery(FakeArms(), cache=cache)
    arms = FakeArms()
    report, _, _ = battery(arms, cache=cache)
    assert arms.asked == []
    ran = [check for check in report.checks if check.status == "passed"]
    assert ran
    assert all(check.cached for check in ran)


@pytest.mark.parametrize(
    "other",
    [
        spec(parameters={"concurrency": "1,8"}),
        spec(near_tie_share=0.5),
        spec().model_copy(update={"seed": 6}),
        spec().model_copy(update={"levers_source_digest": "other"}),
    ],
    ids=["parameters", "policy", "seed", "source"],
)
def test_a_result_is_not_found_for_another_question(tmp_path: Path, other: AbSpec) -> None:
    cache = ParityCache(tmp_path, "torch 2.13")
    battery(FakeArms(), cache=cache)
    arms = FakeArms()
    battery(arms, other, cache=cache)
    assert arms.asked


def test_checks_of_the_operation_are_found_again_for_other_work_with_the_same_lever(
    tmp_path: Path,
) -> None:
    cache = ParityCache(tmp_path, "torch 2.13")
    other = LeverSetting(lever="other", setting="on")
    for check in ("op", "memcheck", "graph", "async"):
        key = cache.key(check, spec())
        assert cache.key(check, spec(parameters={"model": "x"}, stack=(other,))) == key
        assert cache.key(check, spec().model_copy(update={"interleaved": True})) == key
        assert cache.key(check, spec(device="cuda:0")) != key
        assert cache.key(check, spec(near_tie_share=0.5)) != key
        more = spec(parameters={"model": "x", "threads": 2})
        assert cache.key(check, more) != key
        other_gpu = more.model_copy(update={"device": "cuda:0"})
        assert cache.key(check, other_gpu) == cache.key(check, spec(device="cuda:0"))
    for check in ("tokens", "determinism", "smoke", "rollback", "stack"):
        assert cache.key(check, spec(parameters={"model": "x"})) != cache.key(check, spec())


def test_another_stack_measures_again(tmp_path: Path) -> None:
    battery(FakeArms(), cache=ParityCache(tmp_path, "torch 2.13"))
    arms = FakeArms()
    battery(arms, cache=ParityCache(tmp_path, "torch 2.14"))
    assert arms.asked


def test_what_one_version_of_the_sanitizer_passed_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ParityCache(tmp_path / "parity", "torch 2.13")
    asked = spec(device="cuda:0")
    tool = tmp_path / "compute-sanitizer"

    def sanitized(version: str) -> bool:
        """Whether the sanitizers ran where the tool says this version."""
        tool.write_text(f"#!/bin/sh\necho NVIDIA\necho '{version}'\n")
        tool.chmod(0o755)
        arms = FakeArms()
        battery(arms, asked, cache=cache)
        return "memcheck" in [task.kind for task in arms.asked]

    monkeypatch.setattr(sanitizer_tool, "find_sanitizer", lambda: str(tool))
    old, new = "Version 2025.3.1.0 (build 1)", "Version 2025.3.1.0 (build 2)"
    assert [sanitized(one) for one in (old, old, new, old)] == [True, False, True, False]
    monkeypatch.setattr(sanitizer_tool, "find_sanitizer", lambda: None)
    report, _, _ = battery(FakeArms(), asked, cache=cache)
    assert {one.name: one.status for one in report.checks}["memcheck"] == "not-run"


def test_the_number_of_pairs_does_not_matter_to_parity(tmp_path: Path) -> None:
    battery(FakeArms(), cache=ParityCache(tmp_path, ""))
    arms = FakeArms()
    fewer = spec().model_copy(update={"looks": (6,), "budget_s": 60.0})
    battery(arms, fewer, cache=ParityCache(tmp_path, ""))
    assert arms.asked == []


def test_neither_a_failed_check_nor_a_failed_process_is_kept(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "")
    assert cache.put("key", failed("op", "wrong", "case", (0, 1))) == ""
    assert cache.get("key") is None
    crash = TaskResult(failure="crashed", stage="op", message="gone")
    battery(FakeArms(fails=lambda task: crash), cache=cache)
    assert list(tmp_path.glob("*.json")) == []


def test_a_damaged_result_is_measured_again(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "")
    cache.put("key", passed("op"))
    (tmp_path / "key.json").write_text('{"name": "op"')
    assert cache.get("key") is None


def test_a_cache_that_cannot_be_written_is_said_and_costs_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    report, _, _ = battery(FakeArms(), cache=ParityCache(blocked / "cache", ""))
    assert report.checks[0].status == "passed"
    assert "not kept in the cache" in report.checks[0].detail


def test_the_parents_half_of_the_battery_imports_no_torch() -> None:
    code = "import sys, experiments.parity.battery; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _asked(arms: FakeArms) -> list[str]:
    return sorted(task.content_digest() for task in arms.asked)


@pytest.mark.parametrize("claims", [ParityClass.LOSSLESS, ParityClass.BYTE_EXACT])
@pytest.mark.parametrize("stack", [(), (LeverSetting(lever="other", setting="on"),)])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_processes_that_the_checks_ask_for_are_known_beforehand(
    claims: ParityClass,
    stack: tuple[LeverSetting, ...],
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sanitizer_tool, "find_sanitizer", lambda: "sanitizer")
    asked = spec(
        claims=claims,
        stack=stack,
        device=device,
        parameters={"concurrency": "1,4", "graph": "on", "model": "trained"},
    )
    arms = FakeArms()
    ahead: list[Task] = []
    whole = Battery.of(asked, FakeLever(), FakeWorkload(), arms, ahead=ahead.extend)
    whole.begin()
    report, failures = whole.run(lambda check: None)
    assert failures == ()
    assert {check.status for check in report.checks} <= {"passed", "not-run"}
    assert len(ahead) > 10
    assert sorted(task.content_digest() for task in ahead) == _asked(arms)


def test_what_is_kept_is_not_started_ahead(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path / "parity", "stack")
    ahead: list[Task] = []
    for _ in range(2):
        ahead.clear()
        arms = FakeArms()
        whole = Battery.of(spec(), FakeLever(), FakeWorkload(), arms, cache, ahead=ahead.extend)
        whole.begin()
        whole.run(lambda check: None)
    assert ahead == []
    assert arms.asked == []
