from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from experiments.parity import (
    async_,
    determinism,
    graph,
    loss,
    memcheck,
    op,
    results,
    rollback,
    smoke,
    stack,
    token_modes,
    tokens,
)
from experiments.parity.bench import Bench, ProcessFailed
from experiments.parity.limits import Limits
from experiments.parity_records import CheckResult
from experiments.spec import AbSpec, LeverSetting
from experiments.tasks import Measurement, Outputs, Task, TaskResult
from levers.policy import ParityClass
from tests.support.fake_arms import (
    ALL_CHECKS,
    PLAIN,
    FakeArms,
    FakeLever,
    FakeWorkload,
    Plant,
    for_arm,
    gradient,
    spec,
    streams,
)

STACK = (LeverSetting(lever="other", setting="on"),)


def bench(
    plant: Plant = lambda task: None,
    asked: AbSpec | None = None,
    checks: tuple[str, ...] | None = None,
    fails: Callable[[Task], TaskResult | None] = lambda task: None,
) -> Bench:
    workload = FakeWorkload() if checks is None else FakeWorkload(checks)
    arms = FakeArms(plant, fails=fails)
    asked = asked or spec()
    return Bench(asked, FakeLever(), workload, arms, asked.device_type, Limits(reorderings=1))


def changed(**changes: object) -> Outputs:
    return PLAIN.model_copy(update=changes)


# --- determinism ------------------------------------------------------------------------------


def test_equal_digests_leave_byte_exact_possible() -> None:
    found = determinism.check(bench())
    assert (found.status, found.strongest) == ("passed", ParityClass.BYTE_EXACT)
    assert (found.passed, found.total) == (4, 4)


def test_other_digests_leave_lossless_and_name_the_output() -> None:
    plant = for_arm("cand", digests={"logits": "xx", "state": "bb"})
    found = determinism.check(bench(plant))
    assert (found.status, found.strongest, found.where) == (
        "passed",
        ParityClass.LOSSLESS,
        "logits",
    )


def unsteady(arm: str) -> Plant:
    def plant(task: Task) -> Outputs | None:
        if task.arm != arm:
            return None
        return changed(digests={"logits": f"run {task.pair}", "state": "bb"})

    return plant


def test_a_reference_that_differs_from_itself_is_noted() -> None:
    found = determinism.check(bench(unsteady("ref")))
    assert (found.status, found.strongest) == ("passed", ParityClass.LOSSLESS)
    assert "reference not deterministic: 1 of 2 outputs" in found.detail


def test_a_reference_that_differs_from_itself_is_a_fault_where_bits_are_demanded() -> None:
    found = determinism.check(bench(unsteady("ref"), spec(claims=ParityClass.BYTE_EXACT)))
    assert (found.status, found.fault) == ("reference-fault", "not-deterministic")


def test_a_candidate_that_differs_from_itself_is_not_byte_exact() -> None:
    plant = unsteady("cand")
    found = determinism.check(bench(plant))
    assert found.strongest is ParityClass.LOSSLESS
    assert "candidate not deterministic" in found.detail


def test_nonfinite_outputs_blame_the_arm_that_has_them() -> None:
    both = determinism.check(bench(lambda task: changed(nonfinite={"logits": 3})))
    assert (both.status, both.fault) == ("reference-fault", "not-finite")
    found = determinism.check(bench(for_arm("cand", nonfinite={"logits": 3})))
    assert (found.status, found.worst) == ("failed", "candidate: 3 non-finite values in logits")


def test_a_determinism_check_without_outputs_is_empty() -> None:
    assert determinism.check(bench(lambda task: changed(digests={}))).status == "empty"


def test_other_inputs_compare_nothing() -> None:
    assert determinism.check(bench(for_arm("cand", inputs_digest="other"))).status == "empty"


def test_an_output_that_only_one_arm_has_fails() -> None:
    assert determinism.check(bench(for_arm("cand", digests={"logits": "aa"}))).status == "failed"


# --- tokens -----------------------------------------------------------------------------------


def diverging(*prompts: int, gap: float, length: int = 4) -> Plant:
    """Candidate streams that leave the reference's at their third token."""
    answers = [[i, 7, 99 if i in prompts else 8, 9][:length] for i in range(8)]

    def plant(task: Task) -> Outputs | None:
        if task.arguments.get("want") == "gaps":
            return Outputs(gaps=tuple(gap for _ in task.arguments["prefixes"]))
        return changed(streams=streams(*answers)) if task.arm == "cand" else None

    return plant


def test_equal_streams_alone_and_loaded_leave_byte_exact_possible() -> None:
    found = tokens.check(bench())
    assert (found.status, found.passed, found.total) == ("passed", 16, 16)
    assert found.strongest is ParityClass.BYTE_EXACT


def test_near_ties_inside_the_share_are_lossless_and_shown() -> None:
    found = tokens.check(bench(diverging(3, gap=0.2), spec(near_tie_share=0.125)))
    assert (found.status, found.strongest) == ("passed", ParityClass.LOSSLESS)
    assert found.figures["near_ties"] == 2
    assert found.where == "prompt 3 (alone), token 2, gap 0.2 nat"


def test_the_share_is_floored_so_that_one_near_tie_in_sixteen_streams_is_too_many() -> None:
    found = tokens.check(bench(diverging(3, gap=0.2)))
    assert (found.status, found.worst) == ("failed", "2 near-ties where 0 are allowed")


def test_a_gap_beyond_a_near_ties_is_tolerated_where_a_policy_allows_it() -> None:
    asked = spec(near_tie_share=1.0, near_tie_gap_nat=3.0)
    for gap, strongest in ((0.4, ParityClass.LOSSLESS), (1.4, ParityClass.TOLERATED)):
        found = tokens.check(bench(diverging(3, gap=gap), asked))
        assert (found.status, found.strongest) == ("passed", strongest)


def test_a_wide_gap_fails_however_rare() -> None:
    found = tokens.check(bench(diverging(3, gap=1.4), spec(near_tie_share=1.0)))
    assert found.status == "failed"
    assert "1.4 nat" in found.where


@pytest.mark.parametrize("gap", [math.nan, -0.1])
def test_a_gap_that_makes_no_sense_is_no_near_tie(gap: float) -> None:
    found = tokens.check(bench(diverging(3, gap=gap), spec(near_tie_share=1.0)))
    assert found.status == "failed"


def test_strict_streams_allow_no_near_tie() -> None:
    asked = spec(near_tie_share=1.0, strict_tokens=True)
    assert tokens.check(bench(diverging(3, gap=0.01), asked)).status == "failed"
    claimed = spec(near_tie_share=1.0, claims=ParityClass.BYTE_EXACT)
    assert tokens.check(bench(diverging(3, gap=0.01), claimed)).status == "failed"


def test_an_answer_that_ends_earlier_fails() -> None:
    short = [[i, 7, 8, 9][: 3 if i == 5 else 4] for i in range(8)]
    found = tokens.check(bench(for_arm("cand", streams=streams(*short))))
    assert found.status == "failed"
    assert found.worst == "prompt 5 (alone) ends after 3 tokens, the reference after 4"


def test_an_answer_that_ends_for_another_reason_fails() -> None:
    plant = for_arm("cand", streams=streams(*[[i, 7, 8, 9] for i in range(8)], finish="stop"))
    assert "ends by stop" in tokens.check(bench(plant)).worst


def test_a_missing_answer_fails() -> None:
    plant = for_arm("cand", streams=PLAIN.streams[:-1])
    assert tokens.check(bench(plant)).worst == "prompt 7 (alone) has no answer"


def test_a_reference_that_decodes_otherwise_the_second_time_is_said() -> None:
    def plant(task: Task) -> Outputs | None:
        if task.arm == "ref" and task.pair == 1:
            return changed(streams=streams(*[[i, 7, 8, 5] for i in range(8)]))
        return None

    found = tokens.check(bench(plant))
    assert "reference not deterministic: 16 streams" in found.detail
    strict = tokens.check(bench(plant, spec(claims=ParityClass.BYTE_EXACT)))
    assert (strict.status, strict.fault) == ("reference-fault", "not-deterministic")
    assert "reference not deterministic" in strict.worst


def test_a_quarter_of_the_prompts_is_repeated_and_all_of_them_where_bits_matter() -> None:
    made = bench()
    assert token_modes.repeated(made, token_modes.modes(made)[0]).arguments["prompts"] == 4
    made = bench(asked=spec(claims=ParityClass.BYTE_EXACT))
    assert token_modes.repeated(made, token_modes.modes(made)[0]).arguments["prompts"] == 16


def test_random_weights_carry_no_token_claim() -> None:
    found = tokens.check(bench(asked=spec(parameters={"model": "random-0.6b"})))
    assert (found.status, found.total) == ("not-run", 0)
    assert "random weights" in found.detail


def test_a_workload_without_tokens_says_so() -> None:
    assert "decodes no tokens" in tokens.check(bench(checks=())).detail


def test_no_token_at_all_is_empty() -> None:
    assert tokens.check(bench(lambda task: changed(streams=()))).status == "empty"


def test_the_real_size_of_the_token_check_is_a_gpus() -> None:
    for device, prompts in (("cpu", 16), ("cuda:0", 184)):
        asked = spec(device=device)
        bench = Bench(asked, FakeLever(), FakeWorkload(), FakeArms(), asked.device_type)
        assert token_modes.modes(bench)[0].arguments["prompts"] == prompts


def test_operations_are_captured_beside_the_lever_that_captures_and_not_for_it() -> None:
    def captured(stack: tuple[LeverSetting, ...] = (), **changes: str) -> bool:
        asked = spec(device="cuda:0", stack=stack).model_copy(update=changes)
        return bool(graph.ahead(Bench(asked, FakeLever(), FakeWorkload(), FakeArms(), "cuda")))

    assert captured((LeverSetting(lever="cuda_graph", setting="on"),))
    assert not captured()
    assert not captured(lever="cuda_graph")


def test_where_a_graph_is_captured_the_eager_streams_are_compared_too() -> None:
    asked = spec(parameters={"concurrency": "1,4", "graph": "on"})
    made = bench(asked=asked)
    assert [mode.name for mode in token_modes.modes(made)] == ["alone", "loaded", "eager"]
    assert tokens.check(made).total == 24


# --- loss and gradients -----------------------------------------------------------------------


def test_equal_curves_and_gradients_leave_byte_exact_possible() -> None:
    found = loss.check(bench())
    assert (found.status, found.passed, found.total) == ("passed", 6, 6)
    assert found.strongest is ParityClass.BYTE_EXACT


def test_losses_that_differ_in_the_seventh_digit_are_seen() -> None:
    found = loss.check(bench(for_arm("cand", losses=(2.0, 1.5, 1.2500001, 1.0))))
    assert (found.status, found.strongest) == ("passed", ParityClass.LOSSLESS)
    assert "losses differ from step 2 on" in found.detail


def test_a_curve_outside_the_references_own_spread_fails() -> None:
    found = loss.check(bench(for_arm("cand", losses=(2.0, 1.6, 1.4, 1.3))))
    assert (found.status, found.where) == ("failed", "step 1")


def test_a_curve_inside_the_spread_of_the_references_reorderings_passes() -> None:
    def plant(task: Task) -> Outputs | None:
        if task.arguments.get("reorder"):
            return changed(losses=(2.0, 1.55, 1.3, 1.05))
        return changed(losses=(2.0, 1.6, 1.35, 1.1)) if task.arm == "cand" else None

    assert loss.check(bench(plant)).status == "passed"


def test_a_curve_outside_the_band_is_lossless_where_it_is_nearer_to_truth() -> None:
    def plant(task: Task) -> Outputs | None:
        if task.arguments.get("truth"):
            return changed(losses=(2.0, 1.6, 1.41, 1.3))
        return changed(losses=(2.0, 1.6, 1.4, 1.3)) if task.arm == "cand" else None

    found = loss.check(bench(plant, checks=(*ALL_CHECKS, loss.TRUTH)))
    assert found.status == "passed"
    assert found.strongest is ParityClass.LOSSLESS
    assert found.figures["candidate_from_truth"] < found.figures["reference_from_truth"]


def test_a_curve_outside_the_band_and_further_from_truth_is_broken() -> None:
    def plant(task: Task) -> Outputs | None:
        return changed(losses=(2.0, 1.6, 1.4, 1.3)) if task.arm == "cand" else None

    found = loss.check(bench(plant, checks=(*ALL_CHECKS, loss.TRUTH)))
    assert found.status == "failed"
    assert "from fp64 truth" in found.worst


def test_all_curves_that_were_trained_are_kept_by_name_passed_or_failed() -> None:
    steady = loss.check(bench())
    assert list(steady.curves) == [
        "reference",
        "candidate",
        "reference repeat 1",
        "reference reordered 1",
    ]
    away = (2.0, 1.6, 1.4, 1.3)
    found = loss.check(bench(for_arm("cand", losses=away), checks=(*ALL_CHECKS, loss.TRUTH)))
    assert found.status == "failed"
    assert found.curves["candidate"] == away
    assert found.curves["truth"] == found.curves["reference"] == steady.curves["reference"]
    assert CheckResult.model_validate_json(found.model_dump_json()) == found


def test_a_check_without_curves_is_written_as_before_there_were_any() -> None:
    assert "curves" not in results.empty("loss", "nothing").model_dump()


def test_losses_that_are_not_finite_blame_the_arm_that_has_them() -> None:
    bad = (2.0, math.nan, 1.0, 1.0)
    assert loss.check(bench(for_arm("cand", losses=bad))).status == "failed"
    both = loss.check(bench(lambda task: changed(losses=bad)))
    assert (both.status, both.fault) == ("reference-fault", "not-finite")


def test_no_loss_at_all_is_empty() -> None:
    assert loss.check(bench(lambda task: changed(losses=()))).status == "empty"


def test_other_batches_compare_nothing() -> None:
    assert loss.check(bench(for_arm("cand", inputs_digest="other"))).status == "empty"


def test_other_batches_at_a_later_step_compare_nothing_and_the_step_is_named() -> None:
    same = ("noise:11 cond:22", "noise:33 cond:44", "noise:55 cond:66", "noise:77 cond:88")
    later = (*same[:2], "noise:55 cond:99", "noise:aa cond:88")

    def plant(arm: str, pair: int = 0) -> Plant:
        def planted(task: Task) -> Outputs:
            apart = (task.arm, task.pair) == (arm, pair)
            return changed(step_inputs=later if apart else same)

        return planted

    found = loss.check(bench(plant("cand")))
    assert (found.status, found.total) == ("empty", 0)
    assert "the arms did not train on the same batches (step 2: cond)" in found.detail
    again = loss.check(bench(plant("ref", 1), spec(claims=ParityClass.BYTE_EXACT)))
    assert again.status == "empty"
    assert "the reference's repeat did not train on the same batches (step 2" in again.detail
    assert loss.check(bench(plant("nobody"))).status == "passed"


def test_a_candidate_that_trains_fewer_steps_fails() -> None:
    def plant(task: Task) -> Outputs:
        whole = changed(step_inputs=("a", "b", "c", "d"))
        short = {"losses": whole.losses[:3], "step_inputs": ("a", "b", "c"), "inputs_digest": "x"}
        return whole.model_copy(update=short) if task.arm == "cand" else whole

    found = loss.check(bench(plant))
    assert (found.status, found.worst) == ("failed", "3 losses, the reference has 4")


@pytest.mark.parametrize("seed_step", [0, 2])
def test_gradients_of_other_batches_compare_nothing(seed_step: int) -> None:
    def plant(task: Task) -> Outputs | None:
        if task.arm == "ref" or task.arguments.get("want") != "gradients":
            return None
        apart = task.seed == spec().seed + seed_step
        worse = (gradient("w", 0.2), gradient("b", 0.02))
        return changed(inputs_digest="other" if apart else "in", gradients=worse)

    found = loss.check(bench(plant))
    assert found.status == "empty"
    assert "gradients are not of the same batch (in and other)" in found.detail


def test_a_reference_whose_curve_differs_is_a_fault_where_bits_are_demanded() -> None:
    def plant(task: Task) -> Outputs | None:
        if task.arm == "ref" and task.pair == 1:
            return changed(losses=(2.0, 1.5, 1.25, 1.0000001))
        return None

    found = loss.check(bench(plant, spec(claims=ParityClass.BYTE_EXACT)))
    assert (found.status, found.fault) == ("reference-fault", "not-deterministic")
    assert loss.check(bench(plant)).strongest is ParityClass.LOSSLESS


def test_a_gradient_nearer_to_truth_is_lossless_and_both_errors_are_shown() -> None:
    plant = for_arm("cand", gradients=(gradient("w", 0.002), gradient("b", 0.02)))
    found = loss.check(bench(plant))
    assert found.status == "passed"
    assert found.figures["most_improved_parameter"] == "w"
    assert found.figures["most_improved_candidate_error"] == pytest.approx(0.002)
    assert found.figures["most_improved_reference_error"] == pytest.approx(0.1)


def test_a_gradient_further_from_truth_fails_and_is_named() -> None:
    plant = for_arm("cand", gradients=(gradient("w", 0.2), gradient("b", 0.02)))
    found = loss.check(bench(plant))
    assert (found.status, found.where) == ("failed", "w")
    assert "2x" in found.worst


def test_a_gradient_that_exceeds_its_bounds_by_chance_is_cleared_by_fresh_seeds() -> None:
    def plant(task: Task) -> Outputs | None:
        first = task.arm == "cand" and task.seed == 5
        return changed(gradients=(gradient("w", 0.108), PLAIN.gradients[1])) if first else None

    found = loss.check(bench(plant))
    assert (found.status, found.strongest) == ("passed", ParityClass.LOSSLESS)
    assert "fresh seeds" in found.detail


def test_a_bf16_gradient_within_half_a_unit_is_lossless() -> None:
    def plant(task: Task) -> Outputs:
        error = 0.003 if task.arm == "cand" else 0.001
        return changed(gradients=(gradient("w", error), gradient("b", 0.02)))

    assert loss.check(bench(plant)).status == "passed"


def test_the_bf16_floor_does_not_excuse_fp32_work() -> None:
    def plant(task: Task) -> Outputs:
        error = 0.003 if task.arm == "cand" else 1e-7
        return changed(gradients=(gradient("w", error), gradient("b", 1e-7)))

    assert loss.check(bench(plant)).status == "failed"


@pytest.mark.parametrize(
    "gradients",
    [(gradient("w", 0.1),), (gradient("w", math.nan), gradient("b", 0.02)), ()],
    ids=["missing", "nan", "none"],
)
def test_gradients_that_are_missing_or_not_finite_fail(gradients: tuple[object, ...]) -> None:
    assert loss.check(bench(for_arm("cand", gradients=gradients))).status == "failed"


def test_a_reference_gradient_that_is_not_finite_is_its_own_fault() -> None:
    plant = for_arm("ref", gradients=(gradient("w", math.nan), gradient("b", 0.02)))
    found = loss.check(bench(plant))
    assert (found.status, found.fault) == ("reference-fault", "not-finite")


# --- smoke, rollback, stack -------------------------------------------------------------------


def test_smoke_wants_every_axis() -> None:
    assert smoke.check(bench()).status == "passed"
    some = Measurement(values={"a": 1.0}, inputs_digest="", outputs_count=3)
    found = smoke.judge(["a", "b"], some)
    assert (found.status, found.where, found.passed) == ("failed", "b", 1)
    assert smoke.judge(["a"], some.model_copy(update={"outputs_count": 0})).status == "empty"
    assert smoke.judge(["a"], None).status == "empty"


def test_rollback_compares_with_a_process_that_never_imported_the_lever() -> None:
    made = bench()
    found = rollback.check(made)
    assert (found.status, found.passed, found.total) == ("passed", 2, 2)
    plain, switched = made._execute.asked  # type: ignore[attr-defined]
    assert (plain.levers, plain.subject) == ((), None)
    assert switched.levers == (LeverSetting(lever="planted", setting="off"),)


def off_differs(task: Task) -> Outputs | None:
    return changed(digests={"logits": "leak", "state": "bb"}) if task.levers else None


def test_a_kill_switch_that_leaves_a_difference_makes_the_lever_defective() -> None:
    found = rollback.check(bench(off_differs))
    assert (found.status, found.where, found.passed) == ("lever-defective", "logits", 1)


def test_rollback_is_held_to_the_references_own_determinism() -> None:
    def plant(task: Task) -> Outputs:
        return changed(digests={"logits": f"{task.pair} {bool(task.levers)}", "state": "bb"})

    found = rollback.check(bench(plant))
    assert (found.status, found.total) == ("passed", 1)
    assert "1 that do not repeat themselves left out" in found.detail


def test_rollback_asks_again_about_an_output_that_changes_rarely() -> None:
    calls: list[str] = []

    def plant(task: Task) -> Outputs | None:
        calls.append(task.arm)
        rare = "rare" if task.levers and task.pair == 0 else "aa"
        return changed(digests={"logits": rare, "noise": str(len(calls)), "state": "bb"})

    found = rollback.check(bench(plant))
    assert (found.status, found.passed, found.total) == ("passed", 1, 1)


def test_rollback_still_finds_a_defect_beside_an_output_that_never_repeats() -> None:
    calls: list[str] = []

    def plant(task: Task) -> Outputs | None:
        calls.append(task.arm)
        logits = "off" if task.levers else "aa"
        return changed(digests={"logits": logits, "noise": str(len(calls)), "state": "bb"})

    found = rollback.check(bench(plant))
    assert (found.status, found.passed, found.total) == ("lever-defective", 1, 2)


def test_rollback_without_any_steady_output_is_empty() -> None:
    def plant(task: Task) -> Outputs:
        return changed(digests={"logits": f"{task.pair} {bool(task.levers)}"})

    assert rollback.check(bench(plant)).status == "empty"


def test_an_empty_stack_says_so() -> None:
    assert stack.check(bench()).status == "not-run"


def test_the_stack_compares_everything_with_the_set_in_both_arms() -> None:
    made = bench(asked=spec(stack=STACK))
    found = stack.check(made)
    assert (found.status, found.passed, found.total) == ("passed", 24, 24)
    assert found.detail.startswith("with other=on")
    assert all(task.levers[0] == STACK[0] for task in made._execute.asked)  # type: ignore[attr-defined]


def test_a_lever_that_is_exact_alone_and_wrong_together_fails_and_names_the_set() -> None:
    def plant(task: Task) -> Outputs | None:
        together = task.arm == "cand" and len(task.levers) > 1
        return diverging(3, gap=2.0)(task) if together or "prefixes" in task.arguments else None

    made = bench(plant, spec(stack=STACK))
    assert tokens.check(made).status == "passed"
    found = stack.check(made)
    assert (found.status, found.name) == ("failed", "stack")
    assert "other=on" in found.detail


# --- what does not apply here -----------------------------------------------------------------


def test_checks_that_need_cuda_say_so() -> None:
    for module in (memcheck, graph):
        found = module.check(bench())
        assert found.status == "not-run"
        assert "needs CUDA" in found.detail


def test_a_workload_that_serves_no_requests_has_no_async_check() -> None:
    assert async_.check(bench(checks=())).status == "not-run"
    assert async_.check(bench()).status == "passed"


def test_a_run_without_a_graph_has_no_graph_check() -> None:
    assert "captures no" in graph.check(bench(asked=spec(device="cuda:0"))).detail


# --- processes that fail ----------------------------------------------------------------------


def crash(*arms: str) -> Callable[[Task], TaskResult | None]:
    failed = TaskResult(failure="out-of-memory", stage="outputs", message="no memory left")
    return lambda task: failed if task.arm in arms else None


def test_a_candidate_process_that_fails_is_blamed_after_the_reference_did_the_work() -> None:
    with pytest.raises(ProcessFailed) as caught:
        determinism.check(bench(fails=crash("cand")))
    (failure,) = caught.value.failures
    assert (failure.arm, failure.kind) == ("cand", "out-of-memory")


def test_where_both_arms_fail_the_reference_is_named_first() -> None:
    with pytest.raises(ProcessFailed) as caught:
        smoke.check(bench(fails=crash("cand", "ref")))
    assert [one.arm for one in caught.value.failures] == ["ref", "cand"]


def test_a_levers_fault_in_both_processes_is_no_arms_and_in_one_the_candidates() -> None:
    found = TaskResult(failure="lever-defective", stage="op", message="op_cases of planted=on")
    for arms, kind in ((("cand", "ref"), "lever-defective"), (("cand",), "crashed")):
        fails = dict.fromkeys(arms, found)
        with pytest.raises(ProcessFailed) as caught:
            op.check(bench(fails=lambda task, fails=fails: fails.get(task.arm)))  # type: ignore[misc]
        (failure,) = caught.value.failures
        assert (failure.arm, failure.kind) == ("cand", kind)


def test_an_arm_that_leaves_state_changed_is_not_restored() -> None:
    left = TaskResult(outputs=PLAIN, left_changed=("torch.backends.tf32",))
    with pytest.raises(ProcessFailed) as caught:
        determinism.check(bench(fails=lambda task: left if task.arm == "cand" else None))
    assert caught.value.failures[0].kind == "not-restored"


def test_a_process_is_run_once_for_the_same_question() -> None:
    made = bench()
    determinism.check(made)
    first = len(made._execute.asked)  # type: ignore[attr-defined]
    determinism.check(made)
    assert len(made._execute.asked) == first == 4  # type: ignore[attr-defined]


def test_every_status_has_been_seen() -> None:
    kinds = CheckResult.model_fields["status"].annotation
    assert set(getattr(kinds, "__args__", ())) == {
        "passed",
        "failed",
        "empty",
        "not-run",
        "reference-fault",
        "lever-defective",
    }
