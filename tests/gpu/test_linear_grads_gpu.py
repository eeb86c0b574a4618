"""The Linear with fp32 gradients on a CUDA device: against fp64, the original's bits, its time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers.base import OpCase, engaged
from levers.fused_linear_grads import LEVER, SITE
from levers.kernels.linear_grads import (
    FusedLinearGrads,
    column_sums,
    product,
    rounded,
    rounded_two,
)
from levers.kernels.linear_grads_cases import LinearCase

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CASES = LEVER.op_cases("on", "cuda") if torch.cuda.is_available() else []
TOKENS, CONDITIONS = 19_812, 16_448
BF16 = torch.bfloat16
SHAPES = {
    "qkv": (TOKENS, 1536, 4608),
    "out": (TOKENS, 1536, 1536),
    "up": (TOKENS, 1536, 8192),
    "down": (TOKENS, 8192, 1536),
    "kv": (CONDITIONS, 1024, 3072),
}
"""Rows, inputs and outputs of a block's Linears."""

Call = Callable[[], object]

each = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def autocast() -> torch.autocast:
    return torch.autocast("cuda", dtype=BF16)


def microseconds(call: Call, calls: int = 20) -> float:
    """The mean of calls that follow each other in a captured graph: no launch of the host's."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    start.record()
    graph.replay()
    stop.record()
    stop.synchronize()
    return 1e3 * start.elapsed_time(stop) / calls


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def session() -> TrainingSession:
    short = {"size": "xl", "depth": "4", "bs": "4", "steps": "7", "warmup": "3"}
    facts = DeviceFacts("cuda", torch.cuda.get_device_name(), 0)
    parameters: Mapping[str, Scalar] = SLAT_FLOW.resolve(short, facts)
    found = open_session(parameters, "cuda:0", 5, "engine")
    assert isinstance(found, TrainingSession)
    return found


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_case_passes_the_op_check_as_lossless(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert found.parity.value in ("byte-exact", "lossless"), found.norm_ratio
    assert not found.powerless


@each
def test_the_models_shapes_keep_the_forwards_bits_and_come_nearer_to_fp64(
    shape: tuple[int, int, int],
) -> None:
    case = LinearCase(shape[0], shape[1:], "cuda")
    inputs = case.inputs(1)
    ours = case.compute(FusedLinearGrads(F.linear), inputs)
    theirs = case.compute(F.linear, inputs)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    wide = inputs[3].double()
    truths = (wide.t() @ inputs[0].double(), wide.sum(0))
    for one, other, truth in zip(ours[2:], theirs[2:], truths, strict=True):
        assert one.dtype == torch.float32
        assert error(one, truth) < 1e-4 < 1e-3 < error(other, truth)


def parts(shape: tuple[int, int, int]) -> tuple[dict[str, Call], dict[str, Call]]:
    """What the original does with a Linear's parameters beside the products, and what ours does."""
    rows, inputs, outputs = shape
    x, grad = drawn(rows, inputs, dtype=BF16), drawn(rows, outputs, seed=1, dtype=BF16)
    weight, bias = drawn(outputs, inputs, seed=2), drawn(outputs, seed=3)
    theirs: dict[str, Call] = {
        "dbias": lambda: grad.sum(0).float(),
        "dweight": lambda: torch.mm(grad.t(), x).float(),
        "casts": lambda: (weight.to(BF16), bias.to(BF16)),
    }
    return theirs, {
        "dbias": lambda: column_sums(grad, torch.float32),
        "dweight": lambda: product(grad.t(), x, torch.float32),
        "casts": lambda: rounded(weight, bias, BF16),
    }


def both_ways(shape: tuple[int, int, int]) -> tuple[Call, Call]:
    """A Linear's forward and backward under autocast: the original's and ours."""
    rows, inputs, outputs = shape
    x, grad = drawn(rows, inputs, dtype=BF16), drawn(rows, outputs, seed=1, dtype=BF16)
    leaves = [x, drawn(outputs, inputs, seed=2), drawn(outputs, seed=3)]
    for leaf in leaves:
        leaf.requires_grad_()

    def over(linear: Callable[..., Tensor]) -> Call:
        def call() -> object:
            with autocast():
                out = linear(*leaves)
            return torch.autograd.grad(out, leaves, grad)

        return call

    return over(F.linear), over(FusedLinearGrads(F.linear))


@pytest.mark.timing
def test_a_blocks_linears_take_no_longer_in_all(capsys: pytest.CaptureFixture[str]) -> None:
    """No shape need gain alone: one product in fp32 is a tenth slower, casts and sums make up."""
    lines, theirs, ours = [], 0.0, 0.0
    for name, shape in SHAPES.items():
        original, fused = parts(shape)
        for part, call in original.items():
            pair = microseconds(call), microseconds(fused[part])
            lines.append(f"{name:4} {part:9}{pair[0]:7.1f} us -> {pair[1]:8.1f} us")
        one, other = both_ways(shape)
        pair = microseconds(one), microseconds(other)
        lines.append(f"{name:4} both ways{pair[0]:7.1f} us -> {pair[1]:8.1f} us")
        theirs, ours = theirs + pair[0], ours + pair[1]
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert ours < 1.02 * theirs


@pytest.mark.parametrize("columns", [1536, 3072, 4608, 8192, 1000, 33])
@pytest.mark.parametrize("rows", [1, 64, 19_812, 32_768])
def test_the_column_sums_are_fp32_sums_and_repeat(rows: int, columns: int) -> None:
    grad = drawn(rows, columns, dtype=BF16) + 8
    found = column_sums(grad, torch.float32)
    assert error(found, grad.double().sum(0)) < 1e-6
    assert torch.equal(found, column_sums(grad, torch.float32))


def test_the_casts_round_as_pytorch_does_also_at_the_edges() -> None:
    wild = [torch.nan, torch.inf, -torch.inf, 3.4e38, -3.4e38, 1e-40, -1e-45, 0.0, -0.0, 1.00390625]
    weight, bias = drawn(513, 70), drawn(513, seed=1)
    weight[0, : len(wild)] = torch.tensor(wild, device="cuda")
    bias[: len(wild)] = weight[0, : len(wild)]
    for dtype in (BF16, torch.float16):
        for ours, given in zip(rounded(weight, bias, dtype), (weight, bias), strict=True):
            assert ours is not None
            assert torch.equal(ours.nan_to_num(7.0), given.to(dtype).nan_to_num(7.0))
            assert torch.equal(ours.isnan(), given.isnan())


def test_one_launch_casts_two_linears_as_two_launches_do() -> None:
    for up, down in (((8192, 1536), (1536, 8192)), ((72, 40), (40, 72)), ((1, 1), (1, 1))):
        given = [drawn(*shape, seed=i) for i, shape in enumerate((up, up[:1], down, down[:1]))]
        found = rounded_two(*given, BF16)
        for ours, one in zip(found, given, strict=True):
            assert ours is not None
            assert torch.equal(ours, one.to(BF16))


def test_rows_beyond_two_to_the_31_elements_are_summed() -> None:
    columns = 8192
    rows = 2**31 // columns + 64
    grad = torch.zeros(rows, columns, dtype=BF16, device="cuda")
    grad[-64:] = drawn(64, columns, dtype=BF16)
    found, near = column_sums(grad, torch.float32), grad[-64:].double().sum(0)
    torch.testing.assert_close(found.double(), near, rtol=1e-5, atol=1e-5)


def test_a_backward_under_autocast_gives_the_same_gradients() -> None:
    inputs = LinearCase(300, (64, 128), "cuda").inputs(0)
    leaves = [one.requires_grad_() for one in inputs[:3]]
    found = []
    for _ in "ab":
        with autocast():
            out = FusedLinearGrads(F.linear)(*leaves)
            if found:
                found.append(torch.autograd.grad(out, leaves, inputs[3]))
        if not found:
            found.append(torch.autograd.grad(out, leaves, inputs[3]))
    assert [one.dtype for one in found[1]] == [BF16, torch.float32, torch.float32]
    assert all(map(torch.equal, *found))


def test_a_compiled_graph_holds_it_without_a_break() -> None:
    inputs = LinearCase(300, (256, 512), "cuda").inputs(0)
    leaves = [one.requires_grad_() for one in inputs[:3]]
    linear = FusedLinearGrads(F.linear)
    found = []
    for call in (linear, torch.compile(linear.__call__, fullgraph=True)):
        with autocast():
            out = call(*leaves)
        found.append((out.detach(), *torch.autograd.grad(out, leaves, inputs[3])))
    for eager, compiled in zip(*found, strict=True):
        assert eager.dtype == compiled.dtype
        torch.testing.assert_close(eager, compiled, rtol=2**-7, atol=2**-7)


@functools.cache
def measured() -> tuple[dict[str, str], dict[str, float], dict[str, float]]:
    """The witness, the peak of memory and the median step of both settings."""
    plans, peak, median_ms = {}, {}, {}
    for setting in ("off", "on"):
        one = session()
        with engaged(LEVER, one.sites, setting):
            one.warm_up()
            values = one.measure().values
            one.exercise()
            plans[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
        peak[setting], median_ms[setting] = values["memory/peak_bytes"], values["train/step_ms"]
    return plans, peak, median_ms


def test_the_lever_engages_and_memory_does_not_grow() -> None:
    plans, peak, _ = measured()
    assert "FusedLinearBackward" in plans["on"]
    assert "FusedLinear" not in plans["off"]
    assert peak["on"] <= 1.01 * peak["off"]


@pytest.mark.timing
def test_a_step_with_the_lever_takes_no_longer() -> None:
    median_ms = measured()[2]
    assert median_ms["on"] < 1.02 * median_ms["off"]
