"""The fused row kernels on a CUDA device: at the real size against fp64, and their time.

``pytest -s`` shows a table of microseconds and GB/s beside the original path.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from levers.base import OpCase
from levers.fused_affine_norm import LEVER as AFFINE_NORM_LEVER
from levers.fused_gate_residual import LEVER as GATE_RESIDUAL_LEVER
from levers.fused_modulate import LEVER as MODULATE_LEVER
from levers.kernels.affine_norm_cases import AFFINE_NORM
from levers.kernels.gate_residual_cases import GATE_RESIDUAL
from levers.kernels.modulate_cases import MODULATE
from levers.kernels.row_cases import Call, RowCase, RowOp, normal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LENGTHS = (5601, 1863, 601, 3125, 1159, 960, 2830, 3673)
"""The measured batch of eight assets: 19,812 rows."""

CHANNELS = 1536
OPS = {"modulate": MODULATE, "gate_residual": GATE_RESIDUAL, "affine_norm": AFFINE_NORM}
LEVERS = (MODULATE_LEVER, GATE_RESIDUAL_LEVER, AFFINE_NORM_LEVER)
CASES = [
    pytest.param(case, id=f"{lever.name}: {case.name}")
    for lever in (LEVERS if torch.cuda.is_available() else ())
    for case in lever.op_cases("on", "cuda")
]

PASSES = {
    ("modulate", "forward"): 2,
    ("modulate", "backward"): 4,
    ("gate_residual", "forward"): 3,
    ("gate_residual", "backward"): 3,
    ("affine_norm", "forward"): 2,
    ("affine_norm", "backward"): 4,
}
"""How often the kernels must read or write ``[N, C]`` in bf16; a norm's backward reads the gradient
of the stream as well."""

WARMUP, REPEATS = 5, 30


def real(op: RowOp, dtype: torch.dtype = torch.bfloat16) -> RowCase:
    return RowCase(op, LENGTHS, normal, dtype, "cuda", CHANNELS)


def with_an_exact_factor(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A modulation whose ``1 + scale`` bf16 holds: its rounding is the original's own."""
    rows, shift, scale, *others = inputs
    exact = (1 + scale) - 1
    assert torch.equal(1 + exact.double(), (1 + exact).double())
    return (rows, shift, exact, *others)


@pytest.mark.parametrize("case", CASES)
def test_each_case_passes_the_op_check_as_lossless(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert found.parity.value in ("byte-exact", "lossless"), found.norm_ratio
    assert not found.powerless


@pytest.mark.parametrize("name", OPS)
def test_each_value_at_the_real_size_is_the_fp64_value_rounded_once(name: str) -> None:
    case = real(OPS[name])
    inputs = case.inputs(1)
    if name == "modulate":
        inputs = with_an_exact_factor(inputs)
    result, gradients = case.result_like(inputs), case.gradients_like(inputs)
    case.forward(case.op.fused, inputs, result)
    case.backward(case.op.fused, inputs, gradients)
    truths = (*case.forward_truth(inputs), *case.backward_truth(inputs))
    for found, truth in zip((*result, *gradients), truths, strict=True):
        # Half a unit of bf16 is at most 2^-8; fp32's own errors are those of the largest terms.
        bound = 2.0**-8 * truth.abs() + 2.0**-18 * truth.abs().amax()
        assert ((found.double() - truth).abs() <= bound).all()


@pytest.mark.parametrize("name", OPS)
def test_the_kernels_repeat_themselves_bit_for_bit(name: str) -> None:
    case = real(OPS[name])
    inputs = case.inputs(2)
    first = case.gradients_like(inputs)
    case.backward(case.op.fused, inputs, first)
    for _ in range(10):
        again = case.gradients_like(inputs)
        case.backward(case.op.fused, inputs, again)
        assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("name", OPS)
def test_it_keeps_the_stream_or_the_branch_alone_for_the_backward(name: str) -> None:
    case = real(OPS[name])
    inputs = case.inputs(3)
    tensors, _, segments = case.parts(inputs)
    leaves = tuple(one.requires_grad_() for one in tensors)
    assert len(segments.offsets) == len(LENGTHS) + 1
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    result, *stream = case.op.fused(leaves, segments, case.dtype)
    assert all(one.data_ptr() == leaves[0].data_ptr() for one in stream)
    kept = torch.cuda.memory_allocated() - before - result.numel() * result.itemsize
    assert kept < 0.02 * result.numel() * result.itemsize


@pytest.mark.parametrize("name", OPS)
def test_a_compiled_graph_holds_the_kernels_without_a_break(name: str) -> None:
    case = real(OPS[name])
    inputs = case.inputs(5)
    tensors, grads, segments = case.parts(inputs)
    assert len(segments.offsets) == len(LENGTHS) + 1
    compiled = torch.compile(case.op.fused, fullgraph=True, dynamic=False)
    leaves = tuple(one.detach().requires_grad_() for one in tensors)
    found, expected = (
        torch.autograd.grad(call(leaves, segments, case.dtype), leaves, grads)
        for call in (compiled, case.op.fused)
    )
    (ours, *rows), (eager, *same) = found, expected
    if len(grads) == 1:
        assert torch.equal(ours, eager)
    else:
        # The stream leaves the graph as the view of an input: autograd sums its gradient outside,
        # where that of the norm is rounded, which may be large where the two cancel.
        bound = 2.0**-7 * (2 * eager.float().abs() + grads[1].float().abs())
        assert ((ours.float() - eager.float()).abs() <= bound).all()
    assert all(map(torch.equal, rows, same))


@pytest.mark.parametrize("name", ["modulate", "affine_norm"])
def test_the_streams_gradient_is_the_one_thing_it_adds(name: str) -> None:
    case = real(OPS[name], torch.float32)
    inputs = case.inputs(6)
    tensors, (grad, stream), segments = case.parts(inputs)
    leaves = tuple(one.detach().requires_grad_() for one in tensors)
    results = case.op.fused(leaves, segments, case.dtype)
    both, alone = (
        torch.autograd.grad(results[: len(grads)], leaves, grads, retain_graph=True)
        for grads in ((grad, stream), (grad,))
    )
    torch.testing.assert_close(both[0], alone[0] + stream, rtol=1e-6, atol=1e-6)
    assert all(map(torch.equal, both[1:], alone[1:]))


@pytest.mark.timing
def test_forward_and_backward_are_faster_than_the_original_and_near_the_bandwidth() -> None:
    lines, slower = [], []
    for (name, direction), passes in PASSES.items():
        case = real(OPS[name])
        inputs = case.inputs(4)
        moved = passes * inputs[-2].numel() * inputs[-2].itemsize
        ours, theirs = (
            median_us(timed(case, call, inputs, direction))
            for call in (case.op.fused, case.op.original)
        )
        lines.append(
            f"{name:14}{direction:9}{ours:8.1f} us {moved / ours / 1e3:7.0f} GB/s"
            f"{theirs:9.1f} us originally {theirs / ours:6.1f}x"
        )
        if ours > theirs / 1.2:
            slower.append(lines[-1])
    print("\n" + "\n".join(lines))
    assert slower == []


def timed(
    case: RowCase, call: Call, inputs: tuple[Tensor, ...], direction: str
) -> Callable[[], object]:
    """One direction alone: autograd's own launches are part of the backward."""
    tensors, grads, segments = case.parts(inputs)
    assert len(segments.batch_map) == sum(LENGTHS)
    if direction == "forward":
        return lambda: call(tensors, segments, case.dtype)
    leaves = tuple(one.detach().requires_grad_() for one in tensors)
    results = call(leaves, segments, case.dtype)
    return lambda: torch.autograd.grad(results, leaves, grads, retain_graph=True)


def median_us(work: Callable[[], object]) -> float:
    """The time of one call by CUDA events.

    Before each, 2 GB are overwritten: the last cache (60 MB) holds nothing of the inputs, and the
    host has queued all launches before the device comes to them.
    """
    flush = torch.empty(2 << 30, dtype=torch.int8, device="cuda")
    times = []
    for repeat in range(WARMUP + REPEATS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        if repeat >= WARMUP:
            times.append(1e3 * start.elapsed_time(stop))
    return statistics.median(times)
