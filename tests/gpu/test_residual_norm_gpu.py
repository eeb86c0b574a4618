"""The fused residual and norm on a CUDA device: against fp64, against the kernels apart, its time.

``pytest -s`` shows a table of microseconds and GB/s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from benchmarks.residual_norm import Operands, Size, median_us
from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW, SS_FLOW, FlowWorkload
from levers import catalog
from levers.base import OpCase, engaged
from levers.fused_residual_norm import LEVER
from levers.kernels import gate_residual_triton as gates
from levers.kernels import row_norm_triton as norms
from levers.kernels.residual_norm_cases import FORMS, Form
from levers.kernels.residual_norm_launch import BACKWARD, FORWARD, backward_triton
from levers.kernels.row_cases import RowCase, normal
from levers.kernels.row_norm import EPS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LENGTHS = (5601, 1863, 601, 3125, 1159, 960, 2830, 3673)
"""The measured batch of eight assets: 19,812 rows."""

CHANNELS = 1536
SHORT = {"size": "xl", "depth": "2", "bs": "2", "steps": "3", "warmup": "1"}
BESIDE = ("fused_modulate", "fused_gate_residual")
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
CASES = [
    pytest.param(case, id=case.name)
    for case in (LEVER.op_cases("on", "cuda") if torch.cuda.is_available() else ())
]


def real(form: Form) -> RowCase:
    return RowCase(form.op, LENGTHS, normal, torch.bfloat16, "cuda", CHANNELS)


@pytest.mark.parametrize("case", CASES)
def test_every_op_case_is_lossless_and_has_power(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert not found.powerless


@forms
def test_each_value_at_the_real_size_is_the_fp64_value_up_to_its_roundings(form: Form) -> None:
    case = real(form)
    inputs = case.inputs(1)
    result, gradients = case.result_like(inputs), case.gradients_like(inputs)
    case.forward(form.fused, inputs, result)
    case.backward(form.fused, inputs, gradients)
    truths = (*case.forward_truth(inputs), *case.backward_truth(inputs))
    for found, truth in zip((*result, *gradients), truths, strict=True):
        # The sum is rounded (2^-9 of some units) before it is normed, the result once more.
        bound = 2.0**-6 * truth.abs() + 2.0**-8 * truth.abs().amax()
        assert ((found.double() - truth).abs() <= bound).all()


@forms
def test_the_kernels_are_the_two_apart_but_for_the_order_of_their_sums(form: Form) -> None:
    on = Operands(form, Size(3, 700, CHANNELS), "cuda")
    gate, cu, (scale, shift, offsets) = on.by.gate_BC, on.by.cu_seqlens, on.affine
    out = on.x + on.h if gate is None else gates.forward_triton(on.x, on.h, gate, cu)
    y, mean, rstd = norms.forward_triton(
        out, scale, shift, offsets, eps=EPS, plus_one=form.modulated, dtype=out.dtype
    )
    found = on.forward(FORWARD)
    assert torch.equal(found[1], out)
    near(found[0], y)
    dx, dscale, dshift = norms.backward_triton(
        on.grad, on.stream, out, mean, rstd, scale, offsets, plus_one=form.modulated, sums=True
    )
    back = backward_triton((on.grad, on.stream), (out, on.h, mean, rstd), on.by, sums=True)
    near(back.dx, dx)
    near(back.dscale, dscale)
    near(back.dshift, dshift)
    if gate is not None:
        dh, dgate = gates.backward_triton(back.dx, on.h, gate, cu, sums=True)
        assert torch.equal(back.dh, dh)
        near(back.dgate, dgate)


def near(found: Tensor | None, like: Tensor | None) -> None:
    """Within one unit in the last place of bf16, and few elements at all apart."""
    assert found is not None
    assert like is not None
    assert found.dtype == like.dtype
    like = like.view_as(found)
    bound = 2.0**-7 if found.dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(found, like, rtol=bound, atol=bound * float(like.abs().mean()))
    if found.dtype == torch.bfloat16:
        assert float((found != like).double().mean()) < 0.02


@forms
def test_the_kernels_repeat_themselves_bit_for_bit(form: Form) -> None:
    case = real(form)
    inputs = case.inputs(2)
    first = case.gradients_like(inputs)
    case.backward(form.fused, inputs, first)
    for _ in range(10):
        again = case.gradients_like(inputs)
        case.backward(form.fused, inputs, again)
        assert all(map(torch.equal, first, again))


@forms
def test_it_keeps_no_rows_but_the_sum_and_a_gated_branch(form: Form) -> None:
    case = real(form)
    inputs = case.inputs(3)
    tensors, _, segments = case.parts(inputs)
    leaves = tuple(one.requires_grad_() for one in tensors)
    assert len(segments.offsets) == len(LENGTHS) + 1
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    results = form.fused(leaves, segments, case.dtype)
    made = sum(one.numel() * one.itemsize for one in results)
    assert torch.cuda.memory_allocated() - before - made < 0.01 * made


@forms
def test_a_compiled_graph_holds_the_kernels_without_a_break(form: Form) -> None:
    torch._dynamo.reset()
    case = real(form)
    inputs = case.inputs(5)
    tensors, grads, segments = case.parts(inputs)
    assert len(segments.offsets) == len(LENGTHS) + 1
    compiled = torch.compile(form.fused, fullgraph=True, dynamic=False)
    leaves = tuple(one.detach().requires_grad_() for one in tensors)
    found, expected = (
        torch.autograd.grad(call(leaves, segments, case.dtype), leaves, grads)
        for call in (compiled, form.fused)
    )
    for ours, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eager, rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.timing
@forms
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_one_kernel_is_faster_than_two_at_the_dense_size(form: Form, direction: str) -> None:
    """A branch without a gate saves nothing backward, and may not cost anything there."""
    size = Size()
    on = Operands(form, size, "cuda")
    cut = FORWARD if direction == "forward" else BACKWARD
    fused, apart = getattr(on, direction), getattr(on, f"{direction}_apart")
    us = median_us({"fused": lambda: fused(cut), "apart": apart}, size, "cuda")
    passes = 6 if direction == "backward" and form.gated else 4
    rate = passes * size.rows_bytes / us["fused"] / 1e3
    print(f"\n{form} {direction}: {us['fused']:.1f} us, {rate:.0f} GB/s; apart {us['apart']:.1f}")
    saves = direction == "forward" or form.gated
    assert us["fused"] < us["apart"] * (1.0 if saves else 1.1)


@pytest.mark.parametrize("workload", [SS_FLOW, SLAT_FLOW], ids=lambda one: str(one.name))
def test_the_step_is_that_of_the_levers_apart_up_to_roundings(workload: FlowWorkload) -> None:
    apart = gradients(workload, (*BESIDE, "fused_affine_norm"))
    together = gradients(workload, (*BESIDE, LEVER.name))
    assert apart.keys() == together.keys()
    for name, gradient in apart.items():
        gap = float((together[name] - gradient).norm() / gradient.norm())
        assert gap < 2.0**-6, (name, gap)


def gradients(workload: FlowWorkload, levers: Sequence[str]) -> dict[str, Tensor]:
    """By parameter, of one step; the packed one sums its modulation's gradients in fp32."""
    facts = DeviceFacts("cuda", torch.cuda.get_device_name(), 0)
    one = open_session(workload.resolve(SHORT, facts), "cuda:0", 5, "engine")
    assert isinstance(one, TrainingSession)
    with contextlib.ExitStack() as stack:
        for name in (*levers, "segment_sum_broadcast"):
            stack.enter_context(engaged(catalog.get(name), one.sites, "on"))
        one.step().run()
    named = one.step().model.named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None}
