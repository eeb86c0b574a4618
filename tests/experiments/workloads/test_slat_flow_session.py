"""The training step on the CPU: model, sites, witness, measurement, parity passes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from experiments.values import Scalar, unlike
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow import parity
from experiments.workloads.flow.batch import Sample, draw_samples, flow_loss, make_batch, pack
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.inputs import batch_digest, drawn_digest, overwritten
from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.model import FlowModel
from experiments.workloads.flow.names import AXES, BROADCAST, SITES
from experiments.workloads.flow.parity import curve_config
from experiments.workloads.flow.precision import PRECISIONS, TRUTH
from experiments.workloads.flow.reduced import reduced
from experiments.workloads.flow.resolving import resolve
from experiments.workloads.flow.rope import phases, rotate
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.sites import Sites
from experiments.workloads.flow.step import build_model
from experiments.workloads.flow.workload import SLAT_FLOW
from levers.base import engaged
from levers.errors import UnknownName
from levers.segment_sum_broadcast import LEVER

CPU = DeviceFacts("cpu", "cpu", 8 << 30)
TINY = {"depth": "2", "bs": "3", "tokens": "24", "cap": "64", "steps": "2", "warmup": "1"}


def parameters(**more: str) -> Mapping[str, Scalar]:
    return SLAT_FLOW.resolve({**TINY, **more}, CPU)


def session(**more: str) -> TrainingSession:
    found = open_session(parameters(**more), "cpu", 7, "engine")
    assert isinstance(found, TrainingSession)
    return found


def model(config: FlowConfig) -> FlowModel:
    precision = PRECISIONS[config.matmul]
    return build_model(config, Sites(precision, config.attn), precision, 0, "cpu")


def gradients(one: FlowModel, config: FlowConfig, **of_batch: object) -> dict[str, torch.Tensor]:
    one.zero_grad()
    flow_loss(one, make_batch(config, 0, "cpu", **of_batch)).backward()  # type: ignore[arg-type]
    return {name: p.grad for name, p in one.named_parameters() if p.grad is not None}


def test_every_parameter_gets_a_gradient_that_is_not_zero() -> None:
    config = resolve(TINY, "cpu")
    one = model(config)
    found = gradients(one, config)
    assert set(found) == {name for name, _ in one.named_parameters()}
    assert all(float(grad.abs().max()) > 0 for grad in found.values())


def test_a_block_broadcasts_six_rows_in_bf16() -> None:
    config = resolve(TINY, "cpu")
    one = model(config)
    seen = []
    site = one.sites.by_name[BROADCAST]
    original = site.launch
    site.launch = lambda mod, layout: seen.append((mod.dtype, mod.shape)) or original(mod, layout)
    flow_loss(one, make_batch(config, 0, "cpu"))
    assert seen == [(torch.bfloat16, (3, 64))] * 12


def test_packed_samples_do_not_see_each_other() -> None:
    config = resolve(TINY, "cpu")
    one, batch = model(config), make_batch(config, 0, "cpu")

    def run() -> torch.Tensor:
        return one(
            batch.noised(), batch.t_B, batch.layout, batch.phases_NP, batch.cond, batch.cond_layout
        )

    before = run()
    first = batch.layout.offsets[1]
    batch.clean_NL[first:] += 1.0
    after = run()
    assert torch.equal(before[:first], after[:first])
    assert not torch.equal(before[first:], after[first:])


def test_the_cpu_form_stays_within_bf16_rounding_of_truth() -> None:
    config = resolve(TINY, "cpu")
    one = model(config)
    twin = build_model(config, Sites(TRUTH, "sdpa"), TRUTH, 0, "cpu").double()
    twin.load_state_dict(one.state_dict())
    loss = flow_loss(one, make_batch(config, 0, "cpu"))
    truth = flow_loss(twin, make_batch(config, 0, "cpu", dtype=torch.float64))
    assert truth.dtype == torch.float64
    assert loss.item() == pytest.approx(truth.item(), rel=2e-3)


def test_autocast_and_the_cpu_form_agree_up_to_rounding() -> None:
    fp32, bf16 = (
        resolve({**TINY, "matmul": kind, "depth": "1"}, "cpu") for kind in ("fp32", "bf16")
    )
    losses = [flow_loss(model(c), make_batch(c, 0, "cpu")).item() for c in (fp32, bf16)]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


def test_recomputed_blocks_give_the_same_gradients() -> None:
    plain, saved = (resolve({**TINY, "checkpointed": n}, "cpu") for n in ("0", "2"))
    one, other = gradients(model(plain), plain), gradients(model(saved), saved)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_frozen_blocks_train_nothing_but_pass_the_gradient_to_the_condition() -> None:
    config = resolve({**TINY, "frozen": "1"}, "cpu")
    one, batch = model(config), make_batch(config, 0, "cpu")
    flow_loss(one, batch).backward()
    trained = {name for name, p in one.named_parameters() if p.grad is not None}
    assert all(name.startswith(("blocks.1.", "project.")) for name in trained)
    assert batch.cond.grad is not None


def test_rotary_positions_keep_lengths_and_depend_on_distance() -> None:
    coords = torch.tensor([[0, 0, 0], [3, 1, 2], [5, 4, 4], [8, 5, 6]])
    turn = phases(coords, 32, torch.float64)
    q, k = torch.randn(2, 1, 1, 32, dtype=torch.float64).expand(2, 4, 1, 32)
    turned_q, turned_k = rotate(q, turn), rotate(k, turn)
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    scores = turned_q[:, 0] @ turned_k[:, 0].T
    torch.testing.assert_close(scores[0, 1], scores[2, 3])
    assert turn.shape == (4, 16)
    assert torch.equal(turn[:, 15], torch.ones(4, dtype=torch.complex128))


def test_the_layout_cuts_where_the_samples_end() -> None:
    layout = PackedLayout.of((2, 1, 3), "cpu")
    assert layout.offsets == (0, 2, 3, 6)
    assert layout.batch_map.tolist() == [0, 0, 1, 2, 2, 2]
    assert (layout.tokens, layout.longest) == (6, 3)


def test_batches_repeat_by_seed_and_reorder_by_sample() -> None:
    config = resolve(TINY, "cpu")
    one, again, other = (make_batch(config, seed, "cpu") for seed in (1, 1, 2))
    assert batch_digest(one) == batch_digest(again) != batch_digest(other)
    turned = make_batch(config, 1, "cpu", order=[2, 0, 1])
    assert torch.equal(turned.clean_NL[: config.lengths[2]], one.clean_NL[-config.lengths[2] :])


def test_the_parts_of_a_batch_are_as_drawn_until_somebody_writes_into_one() -> None:
    config = resolve(TINY, "cpu")
    samples = draw_samples(config, 3)
    batch = pack(config, samples, "cpu")
    assert batch_digest(batch).startswith(f"{drawn_digest(samples)} phases:")
    moved = [dataclasses.replace(one, coords=one.coords.flip(0)) for one in samples]
    assert unlike(batch_digest(batch), batch_digest(pack(config, moved, "cpu"))) == "phases"
    assert overwritten(samples, batch_digest(batch)) == {}
    batch.noise_NL[0, 0] += 1
    assert overwritten(samples, batch_digest(batch)) == {"inputs_overwritten": "noise"}


def test_samples_do_not_depend_on_the_number_of_threads() -> None:
    found = set()
    for threads in (1, 3, 2):
        torch.set_num_threads(threads)
        found.add(drawn_digest(draw_samples(resolve(TINY, "cpu"), 3)))
        assert torch.get_num_threads() == threads
    assert len(found) == 1


def test_a_sample_carries_every_axis_and_its_raw_times() -> None:
    one = session()
    one.warm_up()
    found = one.measure()
    assert set(found.values) == {axis.name for axis in AXES}
    assert all(math.isfinite(value) and value > 0 for value in found.values.values())
    assert len(found.raw["step_s"]) == found.outputs_count == 2
    step_s = found.values["train/step_ms"] / 1e3
    assert found.values["train/tok_s"] == pytest.approx(sum(one.config.lengths) / step_s)


def test_a_step_says_when_the_host_had_enqueued_it_and_its_forwards() -> None:
    step = session(accumulate="2").step()
    first, second = step.timed(), step.timed()
    for one in (first, second):
        assert 0 < one.forward_s < one.enqueue_s <= one.step_s
        assert math.isfinite(float(one.loss))
    assert second.forward_s != first.forward_s


def test_a_sample_keeps_the_hosts_times_where_another_device_does_the_work() -> None:
    one = session()
    runs = [one.step().timed() for _ in "ab"]
    assert one._host_s(runs) == {}
    assert not {"enqueue_s", "enqueue_forward_s"} & set(one.measure().raw)
    one.device = "cuda:0"
    found = one._host_s(runs)
    assert found["enqueue_s"] == tuple(run.enqueue_s for run in runs)
    assert found["enqueue_forward_s"] == tuple(run.forward_s for run in runs)


def test_every_step_does_the_same_work_from_fresh_gradients() -> None:
    one = session()
    step = one.step()
    step.run()
    first = [p.grad.clone() for p in step.model.parameters()]
    step.run()
    assert all(torch.equal(a, p.grad) for a, p in zip(first, step.model.parameters(), strict=True))


def test_adamw_moves_the_weights() -> None:
    one = session(optimizer="adamw")
    before = one.step().model.project.weight.detach().clone()
    one.step().run()
    assert not torch.equal(before, one.step().model.project.weight)


@pytest.mark.parametrize(
    ("setting", "node"), [("off", "Index"), ("on", "SegmentSumBroadcastBackward")]
)
def test_the_witness_sees_which_backward_ran_on_each_axis(setting: str, node: str) -> None:
    one = session()
    with engaged(LEVER, one.sites, setting):
        one.exercise()
    plans = LEVER.witness(one.sites[BROADCAST])
    assert plans == {axis.name: f"backward={node} x 12" for axis in AXES}


def test_frozen_blocks_have_no_backward_to_replace() -> None:
    one = session(frozen="1")
    one.exercise()
    assert LEVER.witness(one.sites[BROADCAST])["train/tok_s"] == "backward=Index x 6"


@pytest.mark.parametrize(("frozen", "backwards"), [("0", 180), ("24", 36)])
def test_freezing_blocks_leaves_the_lever_fewer_broadcasts_to_sum(
    frozen: str, backwards: int
) -> None:
    """The negative control at full depth: the lever's gain must fall with this count."""
    one = session(depth="30", frozen=frozen, channels="24", mlp="32", tokens="8")
    with engaged(LEVER, one.sites, "on"):
        one.exercise()
    found = LEVER.witness(one.sites[BROADCAST])["train/tok_s"]
    assert found == f"backward=SegmentSumBroadcastBackward x {backwards}"


def test_a_step_of_micro_batches_has_the_gradients_of_the_whole_batch() -> None:
    whole, split = session(bs="4"), session(bs="2", accumulate="2")
    assert whole.config.lengths == split.config.lengths
    losses = [one.step().run().item() for one in (whole, split)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    pairs = zip(whole.step().model.parameters(), split.step().model.parameters(), strict=True)
    assert all((a.grad - b.grad).norm() < 0.05 * a.grad.norm() for a, b in pairs)
    assert whole.measure().inputs_digest == split.measure().inputs_digest
    assert split.measure().facts["micro_batches"] == "2 2"


def test_the_loss_check_is_as_long_and_as_deep_as_asked_for() -> None:
    assert curve_config(session(depth="4").config).depth == 2
    asked = session(depth="4", curve_depth="3", curve_steps="5")
    assert curve_config(asked.config).depth == 3
    assert len(asked.outputs({"want": "losses"}).losses) == 5


def test_nothing_is_observed_while_steps_are_timed() -> None:
    one = session()
    one.measure()
    assert not any(site.observations for site in one.sites.values())
    assert set(one.sites) == set(SITES)


def test_a_loss_that_is_not_finite_is_no_measurement() -> None:
    one = session()
    with torch.no_grad():
        one.step().model.project.bias.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="not finite"):
        one.measure()


def test_curves_repeat_and_a_reordering_moves_them_by_rounding_alone() -> None:
    curves = [
        session().outputs({"want": "losses", "steps": 4, "reorder": k}).losses for k in (0, 0, 1)
    ]
    assert curves[0] == curves[1]
    assert curves[2] != curves[0]
    assert curves[2] == pytest.approx(curves[0], rel=1e-3)


def test_the_inputs_of_each_step_of_a_curve_are_digested(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"want": "losses", "steps": 3}
    first, again = (session().outputs(asked) for _ in range(2))
    assert len(set(first.step_inputs)) == 3
    assert (first.step_inputs, first.inputs_digest) == (again.step_inputs, again.inputs_digest)

    def apart(config: FlowConfig, seed: int, **more: Any) -> tuple[Sample, ...]:
        drawn = draw_samples(config, seed, **more)
        if seed == 7002:
            drawn[1].noise[0, 0] += 1.0
        return drawn

    monkeypatch.setattr(parity, "draw_samples", apart)
    other = session().outputs(asked)
    assert other.step_inputs[:2] == first.step_inputs[:2]
    assert unlike(other.step_inputs[2], first.step_inputs[2]) == "noise"
    assert unlike(other.inputs_digest, first.inputs_digest) == "noise"


def test_gradients_have_a_scale_also_where_the_draw_drops_every_condition() -> None:
    """With two samples one seed in a hundred; truth was then zero and every error not a number."""
    alone = parameters(bs="1", depth="1")
    config = reduced(FlowConfig.of(alone))
    seed = next(s for s in range(200) if not draw_samples(config, s)[0].cond.any())
    found = open_session(alone, "cpu", seed, "engine").outputs({"want": "gradients"}).gradients
    assert all(0 < one.relative_error < 1 for one in found)


def test_the_lever_brings_modulation_gradients_nearer_and_leaves_the_others() -> None:
    found = {}
    for setting in ("off", "on"):
        one = session(depth="1")
        with engaged(LEVER, one.sites, setting):
            found[setting] = {g.parameter: g for g in one.outputs({"want": "gradients"}).gradients}
    off, on = found["off"], found["on"]
    modulated = {name for name in off if "modulation" in name or name.startswith("time.")}
    assert (
        on["blocks.0.modulation"].relative_error < 0.1 * off["blocks.0.modulation"].relative_error
    )
    assert {name for name in off if off[name].digest != on[name].digest} == modulated


def test_digests_tell_the_arms_apart_only_where_they_differ() -> None:
    found = {}
    for setting in ("off", "on"):
        one = session(depth="1")
        with engaged(LEVER, one.sites, setting):
            found[setting] = one.outputs({"want": "digests"})
    off, on = found["off"].digests, found["on"].digests
    assert off["loss"] == on["loss"]
    assert off["gradient/blocks.0.modulation"] != on["gradient/blocks.0.modulation"]
    assert found["off"].inputs_digest == found["on"].inputs_digest
    assert not found["on"].nonfinite


def test_an_unknown_output_or_implementation_is_named() -> None:
    with pytest.raises(UnknownName, match="tokens"):
        session().outputs({"want": "tokens"})
    with pytest.raises(UnknownName, match="roofline"):
        open_session(parameters(), "cpu", 0, "oracle:roof")


def test_the_roofline_states_each_targeted_axis() -> None:
    oracle = open_session(parameters(), "cpu", 7, "oracle:roofline")
    found = oracle.measure()
    assert set(found.values) == {one.axis for one in SLAT_FLOW.targets(parameters(), "roofline")}
    assert found.inputs_digest == session().measure().inputs_digest
    assert found.values["train/mfu_matmul"] < found.values["train/mfu_true"]
