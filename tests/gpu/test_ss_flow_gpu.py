"""Dense step, compiled blocks, micro-batches and the frozen control on a CUDA device."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping

import pytest
import torch
from torch._dynamo.utils import counters

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.batch import draw_samples
from experiments.workloads.flow.compiled import compile_facts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW, SS_FLOW, FlowWorkload
from levers import catalog
from levers.base import engaged
from levers.kernels.compiled_block import PARTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

SHORT = {"size": "xl", "depth": "2", "bs": "2", "steps": "5", "warmup": "2"}
COMPILE = {"ss_flow": "compile_ss_flow", "slat_flow": "compile_slat_flow"}
FUSED = (
    "fused_modulate",
    "fused_gate_residual",
    "fused_affine_norm",
    "fused_qk_norm_rope",
    "fused_mlp_hidden",
)
both = pytest.mark.parametrize("workload", [SS_FLOW, SLAT_FLOW], ids=lambda one: str(one.name))


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()
    counters.clear()


def session(workload: FlowWorkload, **more: str) -> TrainingSession:
    facts = DeviceFacts("cuda", torch.cuda.get_device_name(), 0)
    found = open_session(workload.resolve({**SHORT, **more}, facts), "cuda:0", 5, "engine")
    assert isinstance(found, TrainingSession)
    return found


def step_ms(one: TrainingSession) -> float:
    one.warm_up()
    return one.measure().values["train/step_ms"]


@pytest.mark.parametrize("more", [{}, {"checkpointed": "1"}, {"optimizer": "adamw"}])
def test_the_dense_step_measures_every_axis(more: dict[str, str]) -> None:
    one = session(SS_FLOW, **more)
    one.warm_up()
    found = one.measure()
    assert 0 < found.values["train/mfu_matmul"] < found.values["train/mfu_true"] < 100
    assert found.facts["tokens"] == 8192
    estimate = float(found.facts["estimated_bytes"])  # type: ignore[arg-type]
    print(f"{more}: {found.values} estimated {estimate / 1e9:.1f} GB")


def test_the_dense_reference_attends_by_the_flash_kernels() -> None:
    one = session(SS_FLOW)
    one.step().run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        one.step().run()
    names = [event.key for event in profile.key_averages()]
    assert any("flash_fwd" in name for name in names), names
    assert any("flash_bwd" in name for name in names)


def test_dense_gradients_are_near_fp64() -> None:
    found = session(SS_FLOW).outputs({"want": "gradients"}).gradients
    assert max(g.relative_error for g in found) < 0.1


@functools.cache
def compiled(
    workload: FlowWorkload,
) -> tuple[dict[str, float], dict[str, str], Mapping[str, Scalar]]:
    """The step's milliseconds and witness of both settings, and what was compiled for them."""
    lever, found, plans = catalog.get(COMPILE[workload.name]), {}, {}
    for setting in ("off", "on"):
        one = session(workload)
        with contextlib.ExitStack() as stack:
            if workload is SLAT_FLOW:
                stack.enter_context(engaged(catalog.get("segment_sum_broadcast"), one.sites, "on"))
            stack.enter_context(engaged(lever, one.sites, setting))
            found[setting] = step_ms(one)
            one.exercise()
        plans[setting] = lever.witness(one.sites["flow.block"])["train/tok_s"]
    facts = compile_facts()
    print(f"{workload.name}: {found} {facts}")
    return found, plans, facts


@both
def test_compiled_blocks_share_their_graphs(workload: FlowWorkload) -> None:
    _, plans, facts = compiled(workload)
    assert plans["on"] == "backward=CompiledFunctionBackward x 2" != plans["off"]
    assert facts["graph_breaks"] == 0, facts["graph_break_reasons"]
    assert facts["compiled_graphs"] == len(PARTS)


@pytest.mark.timing
@both
def test_compiled_blocks_are_faster(workload: FlowWorkload) -> None:
    found = compiled(workload)[0]
    assert found["on"] < found["off"]


def test_other_lengths_recompile_nothing() -> None:
    one = session(SLAT_FLOW, profile="lognormal", tokens="800", accumulate="2")
    with engaged(catalog.get("compile_slat_flow"), one.sites, "on"):
        one.step().run()
        before = compile_facts()
        other = session(SLAT_FLOW, profile="lognormal", tokens="800", lengths_seed="3", bs="4")
        one.step().load(draw_samples(other.config, 1))
        assert math.isfinite(one.step().run().item())
        assert compile_facts() == before


@both
def test_compiled_gradients_are_no_further_from_fp64(workload: FlowWorkload) -> None:
    lever, errors = catalog.get(COMPILE[workload.name]), {}
    for setting in ("off", "on"):
        one = session(workload)
        with engaged(lever, one.sites, setting):
            found = one.outputs({"want": "gradients"}).gradients
        errors[setting] = {g.parameter: g.relative_error for g in found}
    for name, error in errors["on"].items():
        assert error <= 1.05 * errors["off"][name] + 2.0**-8, name


@both
def test_compiled_blocks_run_with_the_fused_kernels_in_them(workload: FlowWorkload) -> None:
    losses = {}
    for names in ((), (*FUSED, COMPILE[workload.name])):
        one = session(workload)
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(engaged(catalog.get(name), one.sites, "on"))
            losses[len(names)] = one.step().run().item()
            if names:
                print(f"{workload.name}, all fused, compiled: {step_ms(one):.1f} ms")
    print(f"{workload.name}: {compile_facts()}")
    assert losses[len(FUSED) + 1] == pytest.approx(losses[0], rel=5e-3)


@pytest.mark.timing
def test_a_frozen_model_leaves_the_segment_sum_less_to_gain() -> None:
    """The negative control: four of five blocks frozen leave 6 of 30 broadcasts to sum."""
    lever, gain = catalog.get("segment_sum_broadcast"), {}
    for frozen in ("0", "4"):
        times = {}
        for setting in ("off", "on"):
            one = session(SLAT_FLOW, depth="5", frozen=frozen)
            with engaged(lever, one.sites, setting):
                times[setting] = step_ms(one)
        gain[frozen] = times["off"] - times["on"]
    print(f"milliseconds gained: {gain}")
    assert gain["4"] < 0.5 * gain["0"]


def test_micro_batches_keep_the_loss_and_need_less_memory() -> None:
    lever, found = catalog.get("per_gpu_batch"), {}
    for setting in ("off", "2"):
        one = session(SS_FLOW, bs="4", accumulate="2")
        with engaged(lever, one.sites, setting):
            one.warm_up()
            found[setting] = one.measure()
    off, on = found["off"], found["2"]
    assert on.inputs_digest == off.inputs_digest
    assert on.raw["loss"][0] == pytest.approx(off.raw["loss"][0], rel=1e-3)
    assert on.values["memory/peak_bytes"] < 0.8 * off.values["memory/peak_bytes"]
