"""The training step and the segment-sum kernel on a CUDA device."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
import torch

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers import catalog
from levers.base import engaged
from levers.kernels.segment_sum import segment_sum, segment_sum_truth
from levers.kernels.segment_sum_cases import LENGTHS, BroadcastCase, CutByOffsets
from levers.segment_sum_broadcast import LEVER, SITE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHORT = {"size": "xl", "depth": "2", "bs": "2", "steps": "3", "warmup": "2"}


def parameters(**more: str) -> Mapping[str, Scalar]:
    name = torch.cuda.get_device_name()
    return SLAT_FLOW.resolve({**SHORT, **more}, DeviceFacts("cuda", name, 0))


def session(**more: str) -> TrainingSession:
    found = open_session(parameters(**more), "cuda:0", 5, "engine")
    assert isinstance(found, TrainingSession)
    return found


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_kernel_rounds_the_fp64_sum_once(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    case = BroadcastCase(lengths, lambda normal, _: normal + 1.0, dtype, "cuda", 1536)
    _, grad, cu_seqlens = case.inputs(0)
    segments = CutByOffsets(cu_seqlens)
    found, truth = segment_sum(grad, segments, dtype), segment_sum_truth(grad, segments)
    half_ulp = torch.finfo(dtype).eps / 2 + 1e-6
    assert ((found.double() - truth).abs() <= half_ulp * truth.abs() + 1e-5).all()


def test_the_kernel_repeats_itself_bit_for_bit() -> None:
    case = BroadcastCase((8192, 1000, 17), lambda normal, _: normal, torch.bfloat16, "cuda", 1536)
    _, grad, cu_seqlens = case.inputs(1)
    first = segment_sum(grad, CutByOffsets(cu_seqlens), torch.bfloat16)
    for _ in range(20):
        assert torch.equal(first, segment_sum(grad, CutByOffsets(cu_seqlens), torch.bfloat16))


@pytest.mark.parametrize("case", LEVER.op_cases("on", "cuda") if torch.cuda.is_available() else [])
def test_no_case_is_further_from_fp64_than_the_reference(case) -> None:  # type: ignore[no-untyped-def]
    inputs = case.inputs(0)
    reference, candidate = case.outputs(inputs), case.outputs(inputs)
    case.reference(inputs, reference)
    case.candidate(inputs, candidate)
    truth = case.truth(inputs)[0]
    keep = ~case.masks(inputs)[0] if case.masks else torch.ones_like(truth, dtype=torch.bool)
    gap = [(one[0].double() - truth)[keep].norm().item() for one in (reference, candidate)]
    assert gap[1] <= 1.05 * gap[0]
    assert torch.isfinite(candidate[0]).equal(keep)


@functools.cache
def measured() -> tuple[dict[str, float], dict[str, str]]:
    """The median step and the witness of both settings."""
    median_ms, plans = {}, {}
    for setting in ("off", "on"):
        one = session()
        with engaged(LEVER, one.sites, setting):
            one.warm_up()
            median_ms[setting] = one.measure().values["train/step_ms"]
            one.exercise()
            plans[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
    return median_ms, plans


def test_the_lever_engages_on_the_device() -> None:
    plans = measured()[1]
    assert plans["off"] != plans["on"]


@pytest.mark.timing
def test_the_lever_is_faster_on_the_device() -> None:
    median_ms = measured()[0]
    assert median_ms["on"] < 0.8 * median_ms["off"]


def test_modulation_gradients_come_nearer_to_fp64_and_the_others_stay() -> None:
    errors = {}
    for setting in ("off", "on"):
        one = session()
        with engaged(LEVER, one.sites, setting):
            found = one.outputs({"want": "gradients"}).gradients
        errors[setting] = {g.parameter: g.relative_error for g in found}
    assert errors["on"]["blocks.0.modulation"] < 0.2 * errors["off"]["blocks.0.modulation"]
    for name, error in errors["on"].items():
        assert error <= 1.05 * errors["off"][name] + 2.0**-8, name


@pytest.mark.parametrize("more", [{"checkpointed": "1"}, {"optimizer": "adamw"}, {"attn": "sdpa"}])
def test_each_form_of_the_step_measures_every_axis(more: dict[str, str]) -> None:
    one = session(**more)
    one.warm_up()
    values = one.measure().values
    assert set(values) == {axis.name for axis in SLAT_FLOW.axes(parameters(**more))}
    assert 0 < values["train/mfu_matmul"] < values["train/mfu_true"] < 100


def test_the_roofline_is_above_the_step() -> None:
    oracle = open_session(parameters(), "cuda:0", 5, "oracle:roofline")
    oracle.warm_up()
    ceiling = oracle.measure().values
    one = session()
    one.warm_up()
    assert ceiling["train/tok_s"] > one.measure().values["train/tok_s"]
    assert ceiling["train/mfu_true"] < 100


def test_the_host_has_enqueued_a_step_before_the_device_is_through() -> None:
    found = session().measure()
    series = ("step_s", "enqueue_s", "enqueue_forward_s")
    for step_s, enqueue_s, forward_s in zip(*(found.raw[name] for name in series), strict=True):
        assert 0 < forward_s < enqueue_s <= step_s


def test_samples_in_another_order_are_the_same_inputs_with_the_same_loss() -> None:
    lever, found = catalog.get("longest_first"), {}
    for setting in ("off", "on"):
        one = session(bs="4", profile="measured")
        with engaged(lever, one.sites, setting):
            one.warm_up()
            found[setting] = one.measure()
    off, on = found["off"], found["on"]
    assert on.inputs_digest == off.inputs_digest
    assert on.raw["loss"][0] == pytest.approx(off.raw["loss"][0], rel=1e-3)
    assert on.values["memory/peak_bytes"] <= 1.01 * off.values["memory/peak_bytes"]
