"""The fused levers of the flow blocks at once: with recomputed blocks, and inside compiled ones."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
import torch

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.names import BLOCK
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SS_FLOW
from levers import fused_affine_norm, fused_gate_residual, fused_modulate, fused_qk_norm_rope
from levers.base import Lever, engaged
from levers.kernels.compiled_block import CompiledBlock

LEVERS: Sequence[Lever] = (
    fused_modulate.LEVER,
    fused_affine_norm.LEVER,
    fused_gate_residual.LEVER,
    fused_qk_norm_rope.LEVER,
)
TINY = {"depth": "2", "bs": "2", "grid": "3", "steps": "1", "warmup": "1", "threads": "1"}


def session(**more: str) -> TrainingSession:
    parameters = SS_FLOW.resolve({**TINY, **more}, DeviceFacts("cpu", "cpu", 8 << 30))
    one = open_session(parameters, "cpu", 3, "engine")
    assert isinstance(one, TrainingSession)
    return one


def gradients(
    levers: Sequence[Lever], checkpointed: str = "0", block: CompiledBlock | None = None
) -> dict[str, torch.Tensor]:
    """By parameter, of one step with the levers on."""
    one = session(checkpointed=checkpointed)
    if block is not None:
        one.sites[BLOCK].launch = block
    with contextlib.ExitStack() as on:
        for lever in levers:
            on.enter_context(engaged(lever, one.sites, "on"))
        one.step().run()
    found = one.step().model.named_parameters()
    return {name: p.grad for name, p in found if p.grad is not None}


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def test_together_they_stay_within_the_streams_rounding_of_the_original() -> None:
    off, on = gradients(()), gradients(LEVERS)
    assert on.keys() == off.keys()
    # Unequal, or nothing was fused; the gaps are roundings to bf16 (2^-9) over two blocks.
    assert any(not torch.equal(on[name], off[name]) for name in off)
    assert max(gap(on[name], off[name]) for name in off) < 2.0**-5


@pytest.mark.parametrize(("levers", "sums"), [((), 6), (LEVERS, 0)], ids=["off", "on"])
def test_no_sum_of_two_gradients_of_the_stream_is_left(levers: Sequence[Lever], sums: int) -> None:
    """Three norms a block take the stream, which also goes on; autograd adds in place."""
    one = session()
    stream = [sum(one.config.lengths), one.config.channels]
    with contextlib.ExitStack() as on:
        for lever in levers:
            on.enter_context(engaged(lever, one.sites, "on"))
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=cpu, record_shapes=True) as seen:
            one.step().run()
    added = [e for e in seen.events() if e.name == "aten::add_" and e.input_shapes[0] == stream]
    assert len(added) == sums


def test_recomputed_blocks_have_the_same_gradients() -> None:
    plain, recomputed = gradients(LEVERS), gradients(LEVERS, checkpointed="2")
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


# What the compiler itself warns of in its own files while it traces or loads.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*instantiated")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_compiled_parts_hold_them_with_the_eager_gradients() -> None:
    torch._dynamo.reset()
    eager = gradients(LEVERS)
    compiled = gradients(LEVERS, block=CompiledBlock(dynamic=False, backend="aot_eager"))
    # The stream leaves a compiled part as the view of an input: its gradients meet in bf16.
    assert max(gap(compiled[name], eager[name]) for name in eager) < 2.0**-5
