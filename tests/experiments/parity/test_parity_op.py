from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import worker
from experiments.decide.early import decide_before_timing
from experiments.parity import op
from experiments.parity.bench import Bench, ProcessFailed
from experiments.parity.bounds import beside, times
from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.parity_records import CaseResult
from experiments.spec import LeverSetting
from experiments.tasks import Task, TaskResult
from levers import catalog
from levers.base import OpCase
from levers.errors import DefectiveLever
from levers.policy import ParityClass
from tests.support.evidence_factory import evidence
from tests.support.fake_arms import FakeLever, FakeWorkload, spec

Tensors = tuple[Tensor, ...]
ROWS, WIDTH = 64, 48


def add(inputs: Tensors, outputs: Tensors) -> None:
    torch.add(inputs[0], inputs[1], out=outputs[0])


def subtract(inputs: Tensors, outputs: Tensors) -> None:
    """The same sum, bit for bit, by other operators."""
    torch.sub(inputs[0], -inputs[1], out=outputs[0])


def case(
    candidate: Callable[[Tensors, Tensors], None] = add,
    *,
    reference: Callable[[Tensors, Tensors], None] = add,
    dtype: torch.dtype = torch.float32,
    inputs: Callable[[int], Tensors] | None = None,
    rows: int = ROWS,
    name: str = "sum",
) -> OpCase:
    def draw(seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        shape = (rows, WIDTH)
        return tuple(torch.randn(shape, generator=generator).to(dtype) for _ in range(2))

    return OpCase(
        name=name,
        inputs=inputs or draw,
        outputs=lambda given: (torch.empty(given[0].shape, dtype=dtype),),
        reference=reference,
        candidate=candidate,
        truth=lambda given: (given[0].double() + given[1].double(),),
    )


def then(change: Callable[[Tensor], None]) -> Callable[[Tensors, Tensors], None]:
    def call(inputs: Tensors, outputs: Tensors) -> None:
        add(inputs, outputs)
        change(outputs[0])

    return call


def up_one_ulp(output: Tensor) -> None:
    as_integers = {torch.bfloat16: torch.int16, torch.float32: torch.int32}[output.dtype]
    output.view(as_integers).add_(1)


def run(planted: OpCase, bar: Bar = Bar(), seed: int = 3) -> CaseResult:  # noqa: B008
    return check_case(planted, seed, bar)


def test_the_same_function_is_byte_exact_with_power_against_null_candidates() -> None:
    found = run(case())
    assert (found.status, found.parity, found.powerless) == ("passed", ParityClass.BYTE_EXACT, ())
    assert found.norm_ratio == 1.0


def in_octave(seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    values = 16 + 15 * torch.rand((ROWS, WIDTH), generator=generator)
    return values.float(), torch.zeros(ROWS, WIDTH)


def rounded(*, up: bool) -> Callable[[Tensors, Tensors], None]:
    """Truncate to bf16; the candidate goes up one unit, so that truth lies between the arms."""

    def call(inputs: Tensors, outputs: Tensors) -> None:
        truncated = (inputs[0].view(torch.int32) & ~0xFFFF).view(torch.float32)
        outputs[0].copy_(truncated.to(torch.bfloat16))
        if up:
            up_one_ulp(outputs[0])

    return call


def between_the_arms() -> OpCase:
    return replace(
        case(rounded(up=True), reference=rounded(up=False), inputs=in_octave),
        outputs=lambda given: (torch.empty(given[0].shape, dtype=torch.bfloat16),),
        truth=lambda given: (given[0].double(),),
    )


def test_values_in_16_to_32_one_bf16_unit_apart_are_lossless_and_not_byte_exact() -> None:
    found = run(between_the_arms())
    assert (found.status, found.parity) == ("passed", ParityClass.LOSSLESS)
    assert not found.parity.satisfies(ParityClass.BYTE_EXACT)


def test_a_unit_off_in_one_element_of_a_hundred_is_lossless_in_bf16() -> None:
    def change(output: Tensor) -> None:
        output.view(torch.int16).reshape(-1)[::100] += 1

    assert run(case(then(change), dtype=torch.bfloat16)).parity is ParityClass.LOSSLESS


def test_three_times_the_references_error_is_broken_without_a_tolerance() -> None:
    noisy = then(lambda out: out.mul_(1 + 1e-5 * torch.randn(out.shape, generator=_seeded())))
    wrong = then(lambda out: out.mul_(1 + 3e-5 * torch.randn(out.shape, generator=_seeded())))
    found = run(case(wrong, reference=noisy))
    assert (found.status, found.parity) == ("failed", ParityClass.BROKEN)
    assert found.norm_ratio == pytest.approx(3, rel=0.1)
    assert "the reference's" in found.fault
    assert run(case(wrong, reference=noisy), Bar(tolerance=1e-3)).parity is ParityClass.TOLERATED


def _seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_an_error_ten_times_smaller_is_lossless_however_far_from_the_reference() -> None:
    coarse = then(lambda out: out.mul_(1.3))
    found = run(case(add, reference=coarse))
    assert (found.status, found.parity) == ("passed", ParityClass.LOSSLESS)
    assert found.norm_ratio < 0.1


def test_equal_errors_that_scatter_are_decided_on_fresh_draws() -> None:
    def jitter(seed: int) -> Callable[[Tensors, Tensors], None]:
        generator = _seeded(seed)
        return then(lambda out: out.mul_(1 + 1e-4 * torch.randn(out.shape, generator=generator)))

    found = [
        run(case(jitter(2 * s), reference=jitter(2 * s + 1), rows=2), seed=s) for s in range(12)
    ]
    assert all(one.status == "passed" for one in found), [one.fault for one in found]
    assert any(one.draws > 1 for one in found)


@pytest.mark.parametrize("size", [1e-3, 1.0, math.inf, math.nan])
def test_one_wrong_row_is_seen(size: float) -> None:
    def change(output: Tensor) -> None:
        output[17] += size

    found = run(case(then(change)))
    assert found.status == "failed"


def test_one_wrong_row_is_not_averaged_away_in_a_large_bf16_output() -> None:
    def change(output: Tensor) -> None:
        output[700] *= 1.1

    found = run(case(then(change), dtype=torch.bfloat16, rows=1024))
    assert found.status == "failed"


def test_nan_where_the_reference_is_finite_fails_and_says_where() -> None:
    def change(output: Tensor) -> None:
        output[5, 7] = math.nan

    found = run(case(then(change)))
    assert found.status == "failed"
    assert "1 non-finite values in output 0, the first at [5, 7]" in found.fault


def test_nan_in_both_arms_at_the_same_place_is_the_references_fault() -> None:
    def change(output: Tensor) -> None:
        output[5, 7] = math.nan

    found = run(case(then(change), reference=then(change)))
    assert found.status == "not-finite"
    summed = op.summary([found], 3)
    assert (summed.status, summed.fault) == ("reference-fault", "not-finite")


def test_nan_in_the_reference_alone_is_never_a_pass() -> None:
    found = run(case(reference=then(lambda out: out.fill_(math.nan))))
    assert found.status == "not-finite"


def with_infinite_inputs(candidate: Callable[[Tensors, Tensors], None] = add) -> OpCase:
    plain = case(candidate)

    def draw(seed: int) -> Tensors:
        first, second = plain.inputs(seed)
        first[0, 0] = math.nan
        first[1, 1] = math.inf
        return first, second

    return replace(plain, inputs=draw, masks=lambda given: (~torch.isfinite(given[0]),))


def test_nan_and_inf_are_right_where_a_mask_says_so() -> None:
    assert run(with_infinite_inputs()).status == "passed"


def test_a_finite_value_where_nan_is_right_fails() -> None:
    found = run(with_infinite_inputs(then(lambda out: out.nan_to_num_(0.0))))
    assert found.status == "failed"
    assert "where NaN or Inf is right" in found.fault


def test_an_output_that_is_not_fully_written_fails() -> None:
    def partial(inputs: Tensors, outputs: Tensors) -> None:
        outputs[0][:-1] = inputs[0][:-1] + inputs[1][:-1]

    found = run(case(partial))
    assert found.status == "failed"
    assert f"{WIDTH} of {ROWS * WIDTH} elements of output 0 were not written" in found.fault


def test_a_kernel_that_adds_to_its_output_fails() -> None:
    def accumulate(inputs: Tensors, outputs: Tensors) -> None:
        outputs[0].nan_to_num_(0.0).add_(inputs[0]).add_(inputs[1])

    found = run(case(accumulate))
    assert found.status == "failed"
    assert not found.deterministic


def test_a_candidate_that_writes_to_its_inputs_fails() -> None:
    def inplace(inputs: Tensors, outputs: Tensors) -> None:
        add(inputs, outputs)
        inputs[0][0, 0] += 1

    found = run(case(inplace))
    assert (found.status, found.fault) == ("failed", "it changed its inputs")


def test_an_unwritten_reference_is_the_references_fault() -> None:
    found = run(case(reference=lambda inputs, outputs: None))
    assert found.status == "reference-failed"


def test_a_reference_that_differs_from_itself_is_a_fault_only_where_bits_are_demanded() -> None:
    generator = _seeded()

    def unsteady(inputs: Tensors, outputs: Tensors) -> None:
        add(inputs, outputs)
        outputs[0].mul_(1 + 1e-6 * torch.randn(outputs[0].shape, generator=generator))

    assert run(case(reference=unsteady), Bar(byte_exact=True)).status == "not-deterministic"
    found = run(case(reference=unsteady))
    assert (found.status, found.parity) == ("passed", ParityClass.LOSSLESS)


def test_a_rare_difference_shows_in_thirty_repeats() -> None:
    calls = iter(range(1000))

    def rare(inputs: Tensors, outputs: Tensors) -> None:
        add(inputs, outputs)
        if next(calls) % 20 == 19:
            outputs[0].view(torch.int32).reshape(-1)[0] += 1

    found = run(case(rare), Bar(byte_exact=True, repeats=30))
    assert not found.deterministic
    assert found.parity is ParityClass.LOSSLESS


def test_reorderings_widen_what_is_lossless() -> None:
    def jitter(scale: float) -> Callable[[Tensors, Tensors], None]:
        def change(out: Tensor) -> None:
            out.mul_(1 + scale * torch.randn(out.shape, generator=_seeded()))

        return then(change)

    narrow = case(jitter(3e-5), reference=jitter(1e-5))
    assert run(narrow).status == "failed"
    wide = replace(narrow, reorderings=(jitter(4e-5),))
    assert run(wide).parity is ParityClass.LOSSLESS


def test_a_case_that_zeros_would_pass_has_no_power_and_is_not_counted() -> None:
    def zeros(seed: int) -> Tensors:
        return torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)

    powerless = run(case(inputs=zeros, name="zeros"))
    assert "zeros" in powerless.powerless
    counted = op.summary([powerless, run(case(subtract))], 3)
    assert (counted.status, counted.passed, counted.total) == ("passed", 1, 1)
    assert "without power" in counted.detail
    alone = op.summary([powerless], 3)
    assert (alone.status, alone.total) == ("empty", 0)
    assert "no power" in alone.detail


def test_a_case_that_a_copy_of_the_input_would_pass_has_no_power() -> None:
    def identity(seed: int) -> Tensors:
        return torch.randn(ROWS, WIDTH, generator=_seeded(seed)), torch.zeros(ROWS, WIDTH)

    assert run(case(inputs=identity)).powerless == ("a copy of input 0",)


def test_a_case_without_elements_is_empty() -> None:
    found = run(case(rows=0))
    assert found.status == "empty"
    assert op.summary([found], 3).status == "empty"


def with_wrong_truth(factor: float, candidate: Callable[[Tensors, Tensors], None]) -> OpCase:
    right = case(candidate, dtype=torch.bfloat16)
    return replace(right, truth=lambda given: (factor * right.truth(given)[0],))


@pytest.mark.parametrize("factor", [1.5, 0.8, 1.1])
def test_a_truth_that_is_as_wrong_for_both_arms_is_no_pass(factor: float) -> None:
    """Their errors are equal then, and a check of their ratio alone passes."""
    wrong = [run(with_wrong_truth(factor, then(up_some)), seed=seed) for seed in range(3)]
    assert {one.status for one in wrong} == {"passed"}
    found = op.summary(wrong, 0)
    assert (found.status, found.fault) == ("reference-fault", "failed")
    assert "the truth of the cases is wrong" in found.worst


def up_some(output: Tensor) -> None:
    """The next number in one element of a hundred."""
    output.view(torch.int16).view(-1)[::100].add_(1)


def test_arms_that_are_far_from_truth_in_their_own_ways_are_judged_by_their_errors() -> None:
    """As sums in bf16 of many addends are: each order has its own error."""

    def noisy(seed: int) -> Callable[[Tensors, Tensors], None]:
        def call(inputs: Tensors, outputs: Tensors) -> None:
            noise = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(seed))
            torch.add(inputs[0], inputs[1], out=outputs[0])
            outputs[0].add_(0.3 * noise)

        return call

    one = case(noisy(1), reference=noisy(2))
    assert op.summary([run(one, seed=seed) for seed in range(3)], 0).status == "passed"


def test_a_truth_that_is_not_finite_is_a_mistake_of_the_case() -> None:
    wrong = replace(case(), truth=lambda given: (given[0].double() * math.nan,))
    with pytest.raises(DefectiveLever, match="no mask allows"):
        run(wrong)


def test_integer_outputs_are_equal_or_wrong() -> None:
    def argmax(inputs: Tensors, outputs: Tensors) -> None:
        torch.argmax(inputs[0], dim=-1, out=outputs[0])

    def off_by_one(inputs: Tensors, outputs: Tensors) -> None:
        argmax(inputs, outputs)
        outputs[0][3] += 1

    right = replace(
        case(argmax, reference=argmax),
        outputs=lambda given: (torch.empty(ROWS, dtype=torch.int64),),
        truth=lambda given: (given[0].double().argmax(-1).double(),),
    )
    assert run(right).parity is ParityClass.BYTE_EXACT
    assert run(replace(right, candidate=off_by_one)).status == "failed"


# --- the check as a whole ---------------------------------------------------------------------


def task(setting: str = "on", ref: str = "off", **arguments: object) -> Task:
    return Task(
        kind="op",
        arm="cand",
        workload="fake",
        parameters={},
        device="cpu",
        seed=11,
        subject=LeverSetting(lever="planted", setting=setting),
        arguments={
            "ref": ref,
            "tolerance": None,
            "byte_exact": False,
            "repeats": 2,
            **arguments,
        },
    )


@pytest.fixture
def lever(monkeypatch: pytest.MonkeyPatch) -> FakeLever:
    planted = FakeLever(cases=lambda setting: (case(subtract), case(subtract, name="again")))
    monkeypatch.setattr(catalog, "get", lambda name: planted)
    return planted


def test_the_probe_counts_cases_and_records_the_seed(lever: FakeLever) -> None:
    found = op.probe(task(), None)
    assert (found.status, found.passed, found.total) == ("passed", 2, 2)
    assert found.figures["inputs_seed"] == 11
    assert found.strongest is ParityClass.BYTE_EXACT
    assert found.digest == op.probe(task(), None).digest


def test_the_probe_names_the_worst_case_of_a_broken_candidate(lever: FakeLever) -> None:
    bad = case(then(lambda out: out[3].fill_(9.0)), name="bad row")
    lever.cases = lambda setting: (case(subtract), bad)
    found = op.probe(task(), None)
    assert (found.status, found.where, found.passed, found.total) == ("failed", "bad row", 1, 2)
    assert found.strongest is ParityClass.BROKEN


def test_no_case_is_said_and_nothing_passes(lever: FakeLever) -> None:
    lever.cases = lambda setting: ()
    assert op.probe(task(), None).status == "not-run"


def test_with_the_candidate_off_the_arms_of_a_case_are_swapped(lever: FakeLever) -> None:
    worse = then(lambda out: out.mul_(1.001))
    lever.cases = lambda setting: (case(worse),)
    assert op.probe(task(), None).status == "failed"
    swapped = op.probe(task("off", ref="on"), None)
    assert (swapped.status, swapped.strongest) == ("passed", ParityClass.LOSSLESS)


def test_two_settings_are_compared_with_each_other(lever: FakeLever) -> None:
    worse = then(lambda out: out.mul_(1.001))
    lever.cases = lambda setting: (case(worse if setting == "2" else add),)
    assert op.probe(task("2", ref="3"), None).status == "failed"
    assert op.probe(task("3", ref="2"), None).strongest is ParityClass.LOSSLESS


def test_the_reference_can_be_run_alone(lever: FakeLever) -> None:
    def explode(inputs: Tensors, outputs: Tensors) -> None:
        raise RuntimeError("candidate only")

    lever.cases = lambda setting: (case(explode),)
    with pytest.raises(RuntimeError, match="candidate only"):
        op.probe(task(), None)
    op.probe(task(reference_only=True), None)


def cannot(*_: object) -> Any:
    raise ZeroDivisionError("no such shape")


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (cannot, "op_cases of planted=on raised ZeroDivisionError: no such shape"),
        (lambda _: (replace(case(), inputs=cannot),), "inputs of its case 'sum' raised Zero"),
        (lambda _: (replace(case(), outputs=cannot),), "outputs of its case 'sum' raised Zero"),
        (lambda _: (replace(case(), truth=cannot),), "truth of its case 'sum' raised Zero"),
        (lambda _: (replace(case(), masks=cannot),), "masks of its case 'sum' raised Zero"),
        (lambda _: (replace(case(), truth=lambda given: given[:1] * 2),), "differ in shape"),
    ],
    ids=["cases", "inputs", "outputs", "truth", "masks", "shape"],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_fault_of_the_cases_is_the_levers_and_not_the_references(
    lever: FakeLever, stated: Callable[[str], tuple[OpCase, ...]], said: str, parts: int
) -> None:
    lever.cases = stated
    bench = Bench(spec(), lever, FakeWorkload(), in_this_process, "cpu", parts=parts)
    with pytest.raises(ProcessFailed) as caught:
        op.check(bench)
    (failure,) = caught.value.failures
    assert (failure.arm, failure.kind) == ("cand", "lever-defective")
    assert said in failure.message
    decision = decide_before_timing(evidence(failures=(failure,)))
    assert decision is not None
    assert (decision.outcome, decision.reason) == ("invalid", "lever-defective")
    assert "the reference" not in decision.detail


def test_memory_that_the_cases_do_not_find_is_no_statement_about_the_lever(
    lever: FakeLever,
) -> None:
    def full(seed: int) -> Tensors:
        raise MemoryError

    lever.cases = lambda setting: (replace(case(), inputs=full),)
    with pytest.raises(ProcessFailed) as caught:
        op.check(Bench(spec(), lever, FakeWorkload(), in_this_process, "cpu"))
    assert {one.kind for one in caught.value.failures} == {"out-of-memory"}


def in_this_process(asked: Task) -> TaskResult:
    return worker.execute(asked, worker.Stage(None), time.monotonic())


def test_fifteen_percent_more_error_than_the_references_is_resolved_and_fails() -> None:
    def jitter(seed: int, scale: float) -> Callable[[Tensors, Tensors], None]:
        generator = _seeded(seed)
        return then(lambda out: out.mul_(1 + scale * torch.randn(out.shape, generator=generator)))

    found = [
        run(case(jitter(2 * s, 1.15e-4), reference=jitter(2 * s + 1, 1e-4), rows=16), seed=s)
        for s in range(8)
    ]
    assert sum(one.status == "failed" for one in found) >= 7


def test_an_error_beside_an_exact_reference_is_said_in_words() -> None:
    assert beside(1.234) == "1.23x the reference's"
    assert f"error {beside(math.inf)}" == "error where the reference's is 0"
    assert times(0.5) == "0.5x"
    assert "inf" not in times(math.inf)


def test_processes_that_share_the_cases_find_what_one_finds(lever: FakeLever) -> None:
    lever.cases = lambda setting: tuple(case(subtract, name=f"case {k}") for k in range(7))

    def execute(asked: Task) -> TaskResult:
        return TaskResult.model_validate_json(op.shared(asked).model_dump_json())

    bench = Bench(spec(), lever, FakeWorkload(), execute, "cpu", parts=3)
    asked = op.ahead(bench)
    assert [len(op.shared(one).cases) for one in asked] == [3, 2, 2]
    assert len({one.content_digest() for one in asked}) == 3
    alone = Bench(spec(), lever, FakeWorkload(), execute, "cpu")
    (whole,) = op.ahead(alone)
    assert op.check(bench) == op.probe(whole, None)


def test_a_lever_that_states_other_cases_in_another_process_is_not_counted(
    lever: FakeLever,
) -> None:
    calls = iter(range(100))

    def stated(setting: str) -> tuple[OpCase, ...]:
        return tuple(case(subtract, name=f"case {k}") for k in range(4 + next(calls)))

    lever.cases = stated
    bench = Bench(spec(), lever, FakeWorkload(), op.shared, "cpu", parts=2)
    found = op.check(bench)
    assert found.status == "empty"
    assert "other op cases in other processes" in found.detail + found.worst


def test_a_share_of_the_reference_alone_leaves_no_case(lever: FakeLever) -> None:
    assert op.shared(task(share="1/2", reference_only=True)) == TaskResult()


def test_no_case_in_any_share_is_no_check() -> None:
    bench = Bench(spec(), FakeLever(), FakeWorkload(), lambda _: TaskResult(), "cpu", parts=2)
    assert op.check(bench).status == "not-run"


def test_a_lever_states_its_cases_for_the_device_that_its_process_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    class Stating(FakeLever):
        def op_cases(self, setting: str, device: str) -> tuple[OpCase, ...]:
            asked.append(device)
            return (case(),)

    monkeypatch.setattr(catalog, "get", lambda name: Stating())
    subject = LeverSetting(lever="planted", setting="on")
    for device in ("cpu", "cuda:0", "cuda:1"):
        task = Task(
            kind="op",
            arm="cand",
            workload="w",
            parameters={},
            device=device,
            seed=0,
            subject=subject,
        )
        op.cases_of(task)
    assert asked == ["cpu", "cuda:0", "cuda:0"]
