"""Parity of a set of decode levers on random weights, whose tokens mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments import prepare
from experiments.environment import Device
from experiments.parity import op
from experiments.parity.bench import Bench
from experiments.parity.cache import ParityCache
from experiments.parity.results import failed, not_run
from experiments.parity_records import CheckResult
from experiments.prepare import Comparison
from experiments.registry.store import Registry
from experiments.requests import AbRequest, SilentListener
from experiments.spec import LeverSetting
from experiments.stack import parity
from experiments.stack import prepare as stack_prepare
from experiments.stack.requests import StackRequest
from experiments.tasks import Outputs, Task, TaskResult
from experiments.workloads.base import DeviceFacts
from levers.policy import ParityClass
from tests.support.fake_arms import streams

H200 = Device(DeviceFacts("cuda:0", "NVIDIA H200", 150_754_820_096), "GPU-a")
SETTINGS = {"model": "random-0.6b", "graph": "off"}
SET = ("cuda_graph=on", "qk_norm_rope=on")


def passed(strongest: ParityClass) -> CheckResult:
    return CheckResult(name="op", status="passed", passed=44, total=44, strongest=strongest)


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Comparison, tuple[LeverSetting, ...]]:
    request = StackRequest("decode", levers=SET, device="cuda:0", settings=SETTINGS, stepwise=False)
    with Registry.open(tmp_path / "registry.db") as registry:
        found = stack_prepare.resolved(request, H200, registry, SilentListener())
    return found.comparison(found.spec.rows[found.spec.whole]), found.spec.levers


class Arms:
    """Digests and streams that differ between the arms, gaps and op results as planted."""

    def __init__(self, plant: Callable[[str], CheckResult], gap_nat: float = 0.02) -> None:
        self.plant, self.ops, self.gap_nat = plant, list[str](), gap_nat

    def __call__(self, task: Task) -> TaskResult:
        if task.kind == "op":
            assert task.subject is not None
            self.ops.append(task.subject.lever)
            return TaskResult(check=self.plant(task.subject.lever))
        if task.arguments.get("want") == "tokens":
            answer = streams([1, 2, 4 if task.levers else 3])
            return TaskResult(outputs=Outputs(streams=answer, inputs_digest="in"))
        if task.arguments.get("want") == "gaps":
            assert not task.levers
            gaps = (self.gap_nat,) * len(task.arguments["prefixes"])
            return TaskResult(outputs=Outputs(gaps=gaps, inputs_digest="in"))
        digests = {"logits/c32/step0": "b" if task.levers else "a"}
        return TaskResult(outputs=Outputs(digests=digests, nonfinite={}, inputs_digest="in"))


def held(
    asked: tuple[Comparison, tuple[LeverSetting, ...]], arms: Arms, cache: ParityCache | None = None
) -> CheckResult:
    comparison, levers = asked
    report, failures = parity.held(comparison, levers, arms, cache, lambda _: None)
    assert not failures
    return report.checks[0]


def test_a_set_whose_members_hold_against_truth_may_be_timed(asked) -> None:
    arms = Arms(lambda _: passed(ParityClass.LOSSLESS))
    result = held(asked, arms)
    assert arms.ops == ["cuda_graph", "qk_norm_rope"]
    assert (result.status, result.strongest) == ("passed", ParityClass.LOSSLESS)
    assert "qk_norm_rope=on: 44/44 op cases" in result.detail
    assert "1 of 1 streams part on random weights, 0 by more than 0.5 nat" in result.detail


def test_members_that_are_right_alone_and_wrong_together_are_not_timed(asked) -> None:
    result = held(asked, Arms(lambda _: passed(ParityClass.LOSSLESS), gap_nat=3.1))
    assert (result.status, result.where) == ("failed", "prompt 0 (loaded), token 2, gap 3.1 nat")
    assert "1 by more than 0.5 nat" in result.detail


def test_a_member_that_fails_fails_the_set_beside_one_that_states_no_case(asked) -> None:
    bad = failed("op", "3x the reference's error", "case", (1, 2))
    silent = not_run(op.NAME, op.NO_CASES)
    arms = Arms(lambda lever: silent if lever == "cuda_graph" else bad)
    assert held(asked, arms).status == "failed"


def test_a_member_that_fails_or_states_no_case_keeps_the_set_from_being_lossless(asked) -> None:
    def breaks(lever: str) -> CheckResult:
        bad = failed("op", "3x the reference's error", "case", (1, 2))
        return bad if lever == "cuda_graph" else passed(ParityClass.LOSSLESS)

    assert held(asked, Arms(breaks)).status == "failed"
    silent = held(asked, Arms(lambda _: not_run(op.NAME, op.NO_CASES)))
    assert silent.strongest is ParityClass.TOLERATED


def test_what_a_lever_passed_in_its_own_comparison_is_found_again(asked, tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "torch 2.11")
    stack = (LeverSetting(lever="cuda_graph", setting="on"),)
    for name, beside in (("cuda_graph", ()), ("qk_norm_rope", stack)):
        request = AbRequest(name, "off", "on", "decode", settings=SETTINGS, oracle="transformers")
        one = prepare.compare(request, H200, beside)
        bench = Bench(one.spec, one.lever, one.workload, Arms(passed), "cuda")  # type: ignore[arg-type]
        key = cache.key("op", one.spec, repr(bench.limits))
        cache.put(key, passed(ParityClass.LOSSLESS))
    arms = Arms(lambda _: failed("op", "never asked", "", (0, 1)))
    comparison, levers = asked
    kinds = [task.kind for task in parity.foreseen([(comparison, levers)], cache)]
    assert set(kinds) == {"outputs"}
    assert "op" in [task.kind for task in parity.foreseen([(comparison, levers)], None)]
    assert held(asked, arms, cache).status == "passed"
    assert arms.ops == []
