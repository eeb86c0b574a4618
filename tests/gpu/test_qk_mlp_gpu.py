"""The fused norm-and-RoPE and the MLP's activation on a CUDA device, at the model's size."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers import fused_mlp_hidden, fused_qk_norm_rope
from levers.base import Lever, OpCase, engaged
from levers.kernels.mlp_hidden import GeluAndBiasGrad
from levers.kernels.qk_norm_rope import qk_norm_rope
from levers.kernels.qk_norm_rope_cases import QkCase, forward_and_backward, published

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LEVERS: list[Lever] = [fused_qk_norm_rope.LEVER, fused_mlp_hidden.LEVER]
CASES = (
    [case for lever in LEVERS for case in lever.op_cases("on", "cuda")]
    if torch.cuda.is_available()
    else []
)
TOKENS = 19_812
HEADS, DIM, MLP = 12, 128, 8192
BF16 = torch.bfloat16


def session() -> TrainingSession:
    short = {"size": "xl", "depth": "4", "bs": "4", "steps": "7", "warmup": "3"}
    facts = DeviceFacts("cuda", torch.cuda.get_device_name(), 0)
    parameters: Mapping[str, Scalar] = SLAT_FLOW.resolve(short, facts)
    found = open_session(parameters, "cuda:0", 5, "engine")
    assert isinstance(found, TrainingSession)
    return found


def errors(found: tuple[Tensor, ...], truth: tuple[Tensor, ...]) -> list[float]:
    pairs = zip(found, truth, strict=True)
    return [float((one.double() - true).norm() / true.norm()) for one, true in pairs]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_case_passes_the_op_check_as_lossless(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert found.parity.value in ("byte-exact", "lossless"), found.norm_ratio
    assert not found.powerless


@pytest.mark.parametrize("rows", [(TOKENS, TOKENS), (TOKENS, 16_448)], ids=["self", "cross"])
def test_the_models_own_shapes_are_no_further_from_fp64(rows: tuple[int, int]) -> None:
    case = QkCase(rows, rows[0] == rows[1], lambda x: x, BF16, "cuda", HEADS, DIM)
    _, one = forward_and_backward("the model's shape", case)
    inputs = one.inputs(1)
    truth = one.truth(inputs)
    reference, candidate = one.outputs(inputs), one.outputs(inputs)
    one.reference(inputs, reference)
    one.candidate(inputs, candidate)
    for ours, theirs in zip(errors(candidate, truth), errors(reference, truth), strict=True):
        assert ours <= max(1.05 * theirs, 1e-6)


def test_rows_beyond_two_to_the_31_elements_are_found() -> None:
    rows = (2**31) // (3 * HEADS * DIM) + 64
    generator = torch.Generator("cuda").manual_seed(0)
    packed = torch.zeros(rows, 3, HEADS, DIM, dtype=BF16, device="cuda")
    packed[-64:] = torch.randn(64, 3, HEADS, DIM, generator=generator, device="cuda").to(BF16)
    ones = torch.ones(HEADS, DIM, device="cuda")
    found = []
    for part in (packed, packed[-64:].clone()):
        part.requires_grad_()
        results = qk_norm_rope(None, part, ones, ones, None)
        grads = [torch.zeros_like(one) for one in results]
        for grad, one in zip(grads, (2.0, 3.0, 5.0), strict=True):
            grad[-64:] = one
        (gradient,) = torch.autograd.grad(results, part, grads)
        found.append((*(one[-64:].detach().clone() for one in results), gradient[-64:].clone()))
        part.requires_grad_(requires_grad=False)
    assert all(map(torch.equal, *found))


def test_the_activations_rows_beyond_two_to_the_31_elements_are_found() -> None:
    rows = 2**31 // MLP + 64
    generator = torch.Generator("cuda").manual_seed(0)
    h, bias = torch.zeros(rows, MLP, dtype=BF16, device="cuda"), torch.zeros(MLP, device="cuda")
    h[-64:] = torch.randn(64, MLP, generator=generator, device="cuda").to(BF16)
    found = []
    for part in (h, h[-64:].clone()):
        leaves = (part.requires_grad_(), bias.requires_grad_())
        out = GeluAndBiasGrad.apply(*leaves)  # type: ignore[no-untyped-call]
        weight = torch.zeros_like(out)
        weight[-64:] = 1.0
        dh, dbias = torch.autograd.grad(out, leaves, weight)
        found.append((out[-64:].detach().clone(), dh[-64:].clone(), dbias))
        part.requires_grad_(requires_grad=False)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][2], found[1][2], rtol=1e-5, atol=1e-5)


def test_both_backwards_repeat_bit_for_bit() -> None:
    case = QkCase((TOKENS, TOKENS), True, lambda x: x, BF16, "cuda", HEADS, DIM)
    inputs = case.inputs(0)
    first, again = case.gradients_like(inputs), case.gradients_like(inputs)
    case.backward(qk_norm_rope, inputs, first)
    for _ in range(10):
        case.backward(qk_norm_rope, inputs, again)
        assert all(map(torch.equal, first, again))


@functools.cache
def measured(lever: Lever) -> tuple[dict[str, str], dict[str, float], dict[str, float]]:
    """The witness, the peak of memory and the median step of both settings."""
    plans, peak, median_ms = {}, {}, {}
    for setting in ("off", "on"):
        one = session()
        with engaged(lever, one.sites, setting):
            one.warm_up()
            values = one.measure().values
            one.exercise()
            plans[setting] = lever.witness(one.sites[lever.touches[0]])["train/tok_s"]
        peak[setting], median_ms[setting] = values["memory/peak_bytes"], values["train/step_ms"]
    return plans, peak, median_ms


each_lever = pytest.mark.parametrize("lever", LEVERS, ids=[lever.name for lever in LEVERS])


@each_lever
def test_the_lever_engages_and_memory_does_not_grow(lever: Lever) -> None:
    plans, peak, _ = measured(lever)
    assert plans["off"] != plans["on"]
    assert peak["on"] <= 1.01 * peak["off"]


@pytest.mark.timing
@each_lever
def test_a_step_with_the_lever_takes_no_longer(lever: Lever) -> None:
    median_ms = measured(lever)[2]
    assert median_ms["on"] < 1.02 * median_ms["off"]


def test_a_compiled_graph_holds_the_norm_and_rope_without_a_break() -> None:
    case = QkCase((300, 300), True, lambda x: x, BF16, "cuda", HEADS, DIM)
    packed, gamma_q, gamma_k, turn, *grads = case.inputs(2)
    leaves = [x.detach().requires_grad_() for x in (packed, gamma_q, gamma_k)]
    found = []
    for call in (qk_norm_rope, torch.compile(qk_norm_rope, fullgraph=True)):
        out = call(None, *leaves, turn)
        found.append((*out, *torch.autograd.grad(out, leaves, grads)))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(eager, compiled, rtol=1e-5, atol=1e-5)


def test_no_concatenation_is_left_in_the_backward() -> None:
    case = QkCase((300, 300), True, lambda x: x, BF16, "cuda", HEADS, DIM)
    packed, gamma_q, gamma_k, turn, *grads = case.inputs(2)
    leaves = [x.detach().requires_grad_() for x in (packed, gamma_q, gamma_k)]
    names = {}
    for call in (published, qk_norm_rope):
        phases = torch.view_as_complex(turn) if call is published else turn
        results = call(None, *leaves, phases)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            torch.autograd.grad(results, leaves, grads)
        names[call] = {event.name for event in seen.events()}
    assert "aten::stack" in names[published]
    assert not names[qk_norm_rope] & {"aten::stack", "aten::cat"}
