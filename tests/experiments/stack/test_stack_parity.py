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
from experiments.stack import run as stack_run
from experiments.stack import view as stack_view
from experiments.stack.records import StackRecord
from experiments.stack.requests import StackRequest
from experiments.tasks import Outputs, Task, TaskResult
from experiments.workloads.base import DeviceFacts
from levers.errors import UsageError
from levers.policy import ParityClass
from tests.support import stack_factory
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


def on_trained(stack: stack_prepare.Stack) -> stack_prepare.Stack:
    return stack_run.with_tokens(stack, ("shipped", "shipped,mxfp4_weights=on"))


def test_models_for_the_tokens_are_compared_beside_what_random_weights_can_say(
    tmp_path: Path,
) -> None:
    request = StackRequest("decode", levers=SET, device="cuda:0", settings=SETTINGS)
    with Registry.open(tmp_path / "registry.db") as registry:
        found = stack_prepare.resolved(request, H200, registry, SilentListener())
    found = on_trained(found)
    rows = [found.comparison(row).spec.tokens_on for row in found.spec.rows if row.levers]
    assert [len(one) for one in rows] == [0, 2, 0]  # the whole alone: it is what ships
    whole = found.spec.rows[found.spec.whole]
    comparison = found.comparison(whole)

    def far(task: Task) -> bool:
        return task.parameters["model"] == "random-0.6b"

    asked = []

    class Told(Arms):
        def __call__(self, task: Task) -> TaskResult:
            asked.append(task)
            if task.arguments.get("want") == "gaps":
                return TaskResult(outputs=Outputs(gaps=(0.1,), inputs_digest="in"))
            if task.arguments.get("want") == "tokens" and not far(task):
                answer = streams(*[[i, 2, 3] for i in range(8)])
                return TaskResult(outputs=Outputs(streams=answer, inputs_digest="in"))
            return super().__call__(task)

    result = held((comparison, whole.levers), Told(lambda _: passed(ParityClass.LOSSLESS)))
    assert (result.status, result.strongest) == ("passed", ParityClass.LOSSLESS)
    assert "1 of 1 streams part on random weights" in result.detail
    assert "shipped: 16/16 streams equal" in result.detail
    assert "shipped with mxfp4_weights=on: 16/16" in result.detail
    ahead = {one.content_digest() for one in parity.foreseen([(comparison, whole.levers)], None)}
    there = [one for one in asked if one.arguments.get("want") != "gaps"]
    assert {one.content_digest() for one in there} == ahead
    quantised = [one for one in asked if one.levers and one.levers[0].lever == "mxfp4_weights"]
    assert {one.arm for one in quantised} == {"ref", "cand"}


def test_a_stack_refuses_a_model_whose_levers_are_its_own(asked, tmp_path: Path) -> None:
    request = StackRequest("decode", levers=SET, device="cuda:0", settings=SETTINGS)
    bare = StackRequest("decode", device="cuda:0", settings=SETTINGS, bare=True)
    with Registry.open(tmp_path / "registry.db") as registry:
        found = stack_prepare.resolved(request, H200, registry, SilentListener())
        none = stack_prepare.resolved(bare, H200, registry, SilentListener())
    with pytest.raises(UsageError, match="cuda_graph is what the arms differ by"):
        stack_run.with_tokens(found, ("shipped,cuda_graph=on",))
    with pytest.raises(UsageError, match="has no tokens to compare; leave out --tokens-on"):
        stack_run.with_tokens(none, ("shipped",))
    told = dict(stack_view._facts(record_of(on_trained(found))))["tokens on"]
    assert told.startswith("shipped (")
    assert "shipped with mxfp4_weights=on (" in told


def record_of(stack: stack_prepare.Stack) -> StackRecord:
    whole = stack_factory.record(stack_factory.spec(), lambda names: 0.1 * len(names))
    return whole.model_copy(update={"spec": stack.spec})


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
