"""The fused residual and norm in the step: which places it takes, what is left of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
import torch

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.names import (
    AFFINE_NORM,
    BLOCK,
    GATE_RESIDUAL,
    MODULATE,
    RESIDUAL_NORM,
)
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW, SS_FLOW, FlowWorkload
from levers import fused_affine_norm, fused_gate_residual, fused_modulate
from levers.base import Lever, OpCase, engaged
from levers.fused_residual_norm import LEVER
from levers.kernels.compiled_block import CompiledBlock

TINY = {"depth": "3", "bs": "2", "steps": "1", "warmup": "1", "threads": "1"}
SMALL = {
    "slat_flow": {**TINY, "tokens": "20", "cap": "40", "profile": "uniform"},
    "ss_flow": {**TINY, "grid": "3"},
}
BESIDE: Sequence[Lever] = (fused_modulate.LEVER, fused_gate_residual.LEVER)
APART: Sequence[Lever] = (*BESIDE, fused_affine_norm.LEVER)
both = pytest.mark.parametrize("workload", [SS_FLOW, SLAT_FLOW], ids=lambda one: str(one.name))
CASES = tuple(LEVER.op_cases("on", "cpu"))


def session(workload: FlowWorkload = SS_FLOW, **more: str) -> TrainingSession:
    cpu = DeviceFacts("cpu", "cpu", 8 << 30)
    parameters = workload.resolve({**SMALL[str(workload.name)], **more}, cpu)
    one = open_session(parameters, "cpu", 3, "engine")
    assert isinstance(one, TrainingSession)
    return one


def on(stack: contextlib.ExitStack, one: TrainingSession, levers: Sequence[Lever]) -> None:
    for lever in levers:
        stack.enter_context(engaged(lever, one.sites, "on"))


def seen(levers: Sequence[Lever], workload: FlowWorkload = SS_FLOW) -> dict[str, dict[str, int]]:
    """Which backward ran at each site, and how often, in a step with these levers."""
    one = session(workload)
    with contextlib.ExitStack() as stack:
        on(stack, one, levers)
        one.exercise()
    return {
        name: {plan.removeprefix("backward="): n for plan, n in found["train/tok_s"].items()}
        for name, site in one.sites.items()
        if (found := site.observations)
    }


def gradients(
    levers: Sequence[Lever], workload: FlowWorkload = SS_FLOW, **more: str
) -> dict[str, torch.Tensor]:
    one = session(workload, **more)
    with contextlib.ExitStack() as stack:
        on(stack, one, levers)
        one.step().run()
    named = one.step().model.named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None}


@both
def test_it_takes_three_places_of_a_block_and_leaves_the_first_and_the_last(
    workload: FlowWorkload,
) -> None:
    plans = seen([*BESIDE, LEVER], workload)
    assert plans[RESIDUAL_NORM] == {"FusedResidualNormBackward": 3 * 3 - 1}
    assert plans[MODULATE] == {"FusedModulateBackward": 1}
    assert plans[GATE_RESIDUAL] == {"FusedGateResidualBackward": 1}
    assert AFFINE_NORM not in plans


def test_without_it_every_place_is_one_of_the_sites_that_it_joins() -> None:
    plans = seen(APART)
    assert plans[MODULATE] == {"FusedModulateBackward": 6}
    assert plans[GATE_RESIDUAL] == {"FusedGateResidualBackward": 6}
    assert plans[AFFINE_NORM] == {"FusedAffineNormBackward": 3}
    assert plans[RESIDUAL_NORM] == {"FusedModulateBackward": 5, "FusedAffineNormBackward": 3}


@both
def test_the_step_is_that_of_the_three_levers_apart_but_for_the_order_of_a_sum(
    workload: FlowWorkload,
) -> None:
    apart, together = gradients(APART, workload), gradients([*BESIDE, LEVER], workload)
    assert apart.keys() == together.keys()
    for name, gradient in apart.items():
        torch.testing.assert_close(together[name], gradient, rtol=2.0**-7, atol=2.0**-10)
    equal = [name for name in apart if torch.equal(apart[name], together[name])]
    assert len(equal) > 0.9 * len(apart)


def test_the_original_is_the_same_step_however_the_blocks_are_joined() -> None:
    """A recomputed block takes in a stream that is added up; the operations are the same."""
    joined, closed = gradients(()), gradients((), checkpointed="3")
    assert all(torch.equal(joined[name], closed[name]) for name in joined)


def test_a_recomputed_block_has_its_ends_added_up_and_the_same_gradients() -> None:
    levers = [*BESIDE, LEVER]
    plain, recomputed = gradients(levers), gradients(levers, checkpointed="2")
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient, rtol=2.0**-7, atol=2.0**-10)


def test_no_sum_of_two_gradients_of_the_stream_is_left() -> None:
    one = session()
    stream = [sum(one.config.lengths), one.config.channels]
    with contextlib.ExitStack() as stack:
        on(stack, one, [*BESIDE, LEVER])
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=cpu, record_shapes=True) as profiled:
            one.step().run()
    added = [e for e in profiled.events() if e.name == "aten::add_"]
    assert [e for e in added if e.input_shapes[0] == stream] == []


# What the compiler itself warns of in its own files while it traces or loads.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*instantiated")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_compiled_parts_hold_it_with_the_eager_gradients() -> None:
    torch._dynamo.reset()
    levers = [*BESIDE, LEVER]
    eager = gradients(levers, depth="1")
    one = session(depth="1")
    one.sites[BLOCK].launch = CompiledBlock(dynamic=False, backend="aot_eager")
    with contextlib.ExitStack() as stack:
        on(stack, one, levers)
        one.step().run()
    for name, parameter in one.step().model.named_parameters():
        gap = (parameter.grad - eager[name]).norm() / eager[name].norm()
        assert float(gap) < 2.0**-5, name


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_op_case_is_lossless_and_has_power(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert not found.powerless
    assert not found.same
