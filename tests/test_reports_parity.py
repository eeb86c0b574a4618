"""Public fault reports about results: kept outputs, NaN, failures that are no answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import worker
from experiments.decide.early import decide_before_timing
from experiments.failure_kinds import kind_of
from experiments.parity import determinism
from experiments.parity.bench import Bench
from experiments.parity.limits import Limits
from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.parity_records import CaseResult, CheckResult
from experiments.records import ArmFailure, Outcome
from experiments.tasks import Outputs, Task
from levers.base import OpCase
from levers.policy import ParityClass
from tests.support.evidence_factory import EXACT, evidence, failed, parity
from tests.support.fake_arms import PLAIN, FakeArms, FakeLever, FakeWorkload, spec

Tensors = tuple[Tensor, ...]


def square(inputs: Tensors, outputs: Tensors) -> None:
    torch.mul(inputs[0], inputs[0], out=outputs[0])


def keeping(key: Callable[[Tensor], Hashable]) -> Callable[[Tensors, Tensors], None]:
    """The right result, kept by what ``key`` sees of the input."""
    kept: dict[Hashable, Tensor] = {}

    def call(inputs: Tensors, outputs: Tensors) -> None:
        found = key(inputs[0])
        if found not in kept:
            kept[found] = inputs[0] * inputs[0]
        outputs[0].copy_(kept[found])

    return call


def case(
    candidate: Callable[[Tensors, Tensors], None], dtype: torch.dtype = torch.float32
) -> OpCase:
    def draw(seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn((64, 48), generator=generator).to(dtype),)

    return OpCase(
        name="square",
        inputs=draw,
        outputs=lambda given: (torch.empty_like(given[0]),),
        reference=square,
        candidate=candidate,
        truth=lambda given: (given[0].double() ** 2,),
    )


def check(candidate: Callable[[Tensors, Tensors], None], dtype=torch.float32) -> CaseResult:
    return check_case(case(candidate, dtype), 3, Bar())


# https://github.com/flashinfer-ai/flashinfer-bench-starter-kit/issues/21
@pytest.mark.parametrize(
    "key",
    [
        lambda x: tuple(x.flatten()[::97].tolist()),
        lambda x: x.data_ptr(),
        lambda x: tuple(x.shape),
    ],
    ids=["a sample of the values", "the address", "the shape"],
)
def test_a_result_that_is_kept_by_less_than_the_whole_input_fails(key) -> None:
    found = check(keeping(key))
    assert found.status == "failed"
    assert "stayed the same when one element" in found.fault


# https://github.com/flashinfer-ai/flashinfer-bench-starter-kit/issues/21
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_honest_candidate_is_not_called_stale_and_gets_its_inputs_back(dtype) -> None:
    assert check(square, dtype).parity is ParityClass.BYTE_EXACT
    drawn: list[Tensor] = []
    planted = case(square, dtype)

    def draw(seed: int) -> Tensors:
        drawn.append(planted.inputs(seed)[0])
        return (drawn[-1],)

    check_case(replace(planted, inputs=draw), 3, Bar())
    assert torch.equal(drawn[0], planted.inputs(3)[0])


# https://github.com/flashinfer-ai/flashinfer-bench-starter-kit/issues/21
def test_an_output_that_no_element_can_move_visibly_is_no_ground_for_blame() -> None:
    def mean(inputs: Tensors, outputs: Tensors) -> None:
        outputs[0].copy_(inputs[0].double().sum())

    def large(seed: int) -> Tensors:
        one = torch.randn(4096, generator=torch.Generator().manual_seed(seed))
        return (torch.cat([one, torch.tensor([1e9])]).bfloat16(),)

    absorbing = OpCase(
        name="absorbed",
        inputs=large,
        outputs=lambda given: (torch.empty(1, dtype=torch.bfloat16),),
        reference=mean,
        candidate=mean,
        truth=lambda given: (given[0].double().sum()[None],),
    )
    assert check_case(absorbing, 3, Bar()).status == "passed"


# https://github.com/ScalingIntelligence/KernelBench/issues/146
def test_running_out_of_memory_in_a_comparison_is_never_called_a_wrong_result() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 GiB")
    assert kind_of(error) == "out-of-memory"
    blamed = ArmFailure(arm="cand", kind=kind_of(error), stage="parity op: op", message=str(error))
    decision = decide_before_timing(evidence(failures=(blamed,)))
    assert decision is not None
    assert (decision.outcome, decision.reason) == (Outcome.GATED_OFF, "out-of-memory")
    both = (ArmFailure(arm="ref", kind="out-of-memory", stage="parity op", message="full"), blamed)
    decision = decide_before_timing(evidence(failures=both))
    assert decision is not None
    assert (decision.outcome, decision.reason) == (Outcome.INVALID, "reference-failed")


# https://github.com/pytorch/pytorch/pull/129996
@pytest.mark.parametrize("reference_too", [True, False])
def test_nan_never_passes_whether_one_arm_or_both_have_it(*, reference_too: bool) -> None:
    def nan(inputs: Tensors, outputs: Tensors) -> None:
        outputs[0].fill_(float("nan"))

    planted = replace(case(nan), reference=nan if reference_too else square)
    expected = "not-finite" if reference_too else "failed"
    assert check_case(planted, 3, Bar()).status == expected
    swapped = replace(planted, reference=nan, candidate=square)
    assert check_case(swapped, 3, Bar()).status == "not-finite"


# https://github.com/Dao-AILab/flash-attention/issues/2244
def test_a_reference_that_does_not_repeat_itself_makes_byte_exactness_inapplicable() -> None:
    fault: CheckResult = failed("op", 0, 30, worst="30 runs gave different bits").model_copy(
        update={"status": "reference-fault", "fault": "not-deterministic"}
    )
    decision = decide_before_timing(evidence(claims=EXACT, parity=parity(EXACT, fault)))
    assert decision is not None
    assert decision.reason == "reference-not-deterministic"
    assert "30 runs gave different bits" in decision.detail


# https://github.com/Dao-AILab/flash-attention/pull/1766
def test_bits_that_change_in_one_of_thirty_repeats_inside_a_process_are_not_byte_exact() -> None:
    def drifting(task: Task) -> Outputs:
        unsteady = ("state",) if task.arguments.get("repeats") == 30 else ()
        return PLAIN.model_copy(update={"unsteady": unsteady if task.arm == "cand" else ()})

    found = determinism.check(bench_of(drifting, ParityClass.BYTE_EXACT))
    assert (found.status, found.strongest) == ("passed", ParityClass.LOSSLESS)
    assert "candidate not deterministic: 1 of 2 outputs" in found.detail
    assert "arms bit for bit equal" in found.detail
    unclaimed = determinism.check(bench_of(drifting, ParityClass.LOSSLESS))
    assert "candidate equals itself" in unclaimed.detail


# https://github.com/Dao-AILab/flash-attention/issues/2244
def test_a_reference_that_changes_inside_a_process_is_at_fault_where_bits_are_demanded() -> None:
    def drifting(task: Task) -> Outputs:
        return PLAIN.model_copy(update={"unsteady": ("state",)} if task.arm == "ref" else {})

    found = determinism.check(bench_of(drifting, ParityClass.BYTE_EXACT))
    assert (found.status, found.fault) == ("reference-fault", "not-deterministic")


def bench_of(plant: Callable[[Task], Outputs], claims: ParityClass) -> Bench:
    asked = spec(claims=claims, parameters={})
    return Bench(asked, FakeLever(), FakeWorkload(), FakeArms(plant), asked.device_type, Limits())


def test_a_process_repeats_its_outputs_as_often_as_asked_and_names_what_changed() -> None:
    class Session:
        calls = 0

        def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
            assert arguments == {"want": "digests"}
            self.calls += 1
            return Outputs(digests={"steady": "a", "rare": "b" if self.calls == 7 else "a"})

    asked = Task(
        kind="outputs",
        arm="ref",
        workload="fake",
        parameters={},
        device="cpu",
        seed=1,
        arguments={"want": "digests", "repeats": 30},
    )
    session = Session()
    found = worker._outputs(asked, session)  # type: ignore[arg-type]
    assert (session.calls, found.unsteady) == (30, ("rare",))
    assert found.digests == {"steady": "a", "rare": "a"}
