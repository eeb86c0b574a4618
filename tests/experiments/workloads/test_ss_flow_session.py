"""The dense flow's step on the CPU: faithful to the published form, and to the packed one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.catalog import get
from experiments.workloads.flow.batch import Batch, draw_samples, flow_loss, make_batch
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.model import FlowModel
from experiments.workloads.flow.names import ATTENTION, AXES, BROADCAST, MODULATE, SITES
from experiments.workloads.flow.original import GateResidual, Modulate, SdpaAttention, broadcast
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.resolving import resolve
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.sites import Sites
from experiments.workloads.flow.step import build_model
from experiments.workloads.flow.workload import SS_FLOW
from levers.base import engaged
from levers.segment_sum_broadcast import LEVER

CPU = DeviceFacts("cpu", "cpu", 8 << 30)
TINY = {"depth": "2", "bs": "3", "grid": "3", "steps": "2", "warmup": "1"}
FP32 = PRECISIONS["fp32"]


def parameters(**more: str) -> Mapping[str, Scalar]:
    return SS_FLOW.resolve({**TINY, **more}, CPU)


def session(**more: str) -> TrainingSession:
    found = open_session(parameters(**more), "cpu", 7, "engine")
    assert isinstance(found, TrainingSession)
    return found


def tiny(**more: str) -> FlowConfig:
    return resolve({**TINY, **more}, "cpu", "ss_flow")


def model(config: FlowConfig) -> FlowModel:
    return build_model(config, Sites(FP32, config.attn), FP32, 0, "cpu")


def loss_and_gradients(one: FlowModel, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    one.zero_grad()
    loss = flow_loss(one, batch)
    loss.backward()
    return loss.item(), {n: p.grad for n, p in one.named_parameters() if p.grad is not None}


def test_the_catalog_knows_it() -> None:
    assert get("ss_flow") is SS_FLOW


def test_a_sample_fills_the_grid_in_scan_order() -> None:
    batch = make_batch(tiny(), 0, "cpu")
    assert batch.layout.lengths == (27, 27, 27)
    assert batch.layout.dense
    assert batch.cond_layout.dense
    coords = draw_samples(tiny(), 0)[0].coords
    assert coords[:4].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0]]
    assert torch.equal(batch.phases_NP[:27], batch.phases_NP[27:54])


def test_times_are_logit_normal_around_one() -> None:
    config = dataclasses.replace(tiny(), grid=1, tokens=1, cap=1, bs=2000)
    logits = torch.logit(torch.stack([one.t for one in draw_samples(config, 0)]))
    assert logits.mean().item() == pytest.approx(1.0, abs=0.1)
    assert logits.std().item() == pytest.approx(1.0, abs=0.1)


def test_a_dense_broadcast_gathers_nothing_and_its_backward_is_a_sum() -> None:
    dense = PackedLayout.of((4, 4), "cpu", dense=True)
    packed = PackedLayout.of((4, 4), "cpu")
    x, shift, scale, upstream = (torch.randn(n, 16) for n in (8, 2, 2, 8))
    found = {}
    for name, layout in (("dense", dense), ("packed", packed)):
        rows = [one.clone().requires_grad_() for one in (x, shift, scale)]
        out, on = Modulate(broadcast, FP32)(*rows, layout)
        assert on is rows[0]
        found[name] = (out, *torch.autograd.grad(out, rows, upstream))
    for one, other in zip(found["dense"], found["packed"], strict=True):
        torch.testing.assert_close(one, other)
    assert broadcast(shift, dense).shape == (2, 1, 16)


def test_the_dense_gate_rounds_as_the_packed_one() -> None:
    x, h, gate = (torch.randn(n, 16).bfloat16() for n in (8, 8, 2))
    out = [
        GateResidual(broadcast)(x, h, gate, PackedLayout.of((4, 4), "cpu", dense=dense))
        for dense in (True, False)
    ]
    assert torch.equal(*out)
    assert out[0].shape == (8, 16)


def test_dense_attention_is_one_call_and_equals_that_of_each_sample() -> None:
    q, k, v = (torch.randn(n, 2, 16) for n in (12, 6, 6))
    queries, keys = PackedLayout.of((4,) * 3, "cpu"), PackedLayout.of((2,) * 3, "cpu")
    dense = [PackedLayout.of(one.lengths, "cpu", dense=True) for one in (queries, keys)]
    attention = SdpaAttention(FP32)
    torch.testing.assert_close(
        attention(q, k, v, *dense).float(), attention(q, k, v, queries, keys).float()
    )
    calls = []
    real = F.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", lambda *a: calls.append(1) or real(*a))
        attention(q, k, v, *dense)
    assert len(calls) == 1


def test_a_dense_step_agrees_with_the_packed_step_on_the_same_samples() -> None:
    config = tiny()
    one = model(config)
    batch = make_batch(config, 0, "cpu")
    packed = dataclasses.replace(
        batch,
        layout=dataclasses.replace(batch.layout, dense=False),
        cond_layout=dataclasses.replace(batch.cond_layout, dense=False),
    )
    dense_loss, dense = loss_and_gradients(one, batch)
    packed_loss, gathered = loss_and_gradients(one, packed)
    assert dense_loss == pytest.approx(packed_loss, rel=1e-3)
    for name, gradient in dense.items():
        assert (gradient - gathered[name]).norm() <= 0.05 * gradient.norm(), name


def test_a_sample_carries_every_axis() -> None:
    one = session()
    one.warm_up()
    found = one.measure()
    assert set(found.values) == {axis.name for axis in AXES}
    assert found.facts["tokens"] == 81
    oracle = open_session(parameters(), "cpu", 7, "oracle:roofline").measure()
    assert oracle.inputs_digest == found.inputs_digest


def test_every_site_of_the_step_is_seen_and_no_row_is_gathered() -> None:
    one = session()
    one.exercise()
    assert set(one.sites) == set(SITES)
    seen = {
        name: site.observations["train/tok_s"]
        for name, site in one.sites.items()
        if site.observations
    }
    assert seen[BROADCAST] == {"backward=Unsqueeze": 12}
    assert sum(seen[MODULATE].values()) == 4
    assert sum(seen[ATTENTION].values()) == 4


def test_a_lever_of_the_packed_broadcast_engages_here_too() -> None:
    one = session()
    with engaged(LEVER, one.sites, "on"):
        one.exercise()
    plans = LEVER.witness(one.sites[BROADCAST])
    assert plans["train/tok_s"] == "backward=SegmentSumBroadcastBackward x 12"


def test_curves_repeat_and_gradients_are_near_truth() -> None:
    one = session(depth="1", grid="4")
    curves = [one.outputs({"want": "losses", "steps": 3}).losses for _ in range(2)]
    assert curves[0] == curves[1]
    truth = one.outputs({"want": "losses", "steps": 3, "truth": True}).losses
    assert curves[0] == pytest.approx(truth, rel=5e-3)
    errors = {g.parameter: g.relative_error for g in one.outputs({"want": "gradients"}).gradients}
    assert max(errors.values()) < 0.05
