"""MXFP4 weights on a CUDA device: quantiser, kernels, cases, graphs, a decoder, bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.floor import stored_bytes
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.workload import DECODE
from levers.base import OFF, OpCase, engaged
from levers.kernels.mxfp4_launch import Epilogue, product
from levers.kernels.mxfp4_layout import dequantise_torch
from levers.kernels.mxfp4_matrix import Mxfp4Weight, quantise
from levers.kernels.mxfp4_norm_triton import stream_norm_triton
from levers.kernels.mxfp4_plans import Plan, plan_of
from levers.mxfp4_weights import LEVER, SITE, TOLERANCE
from levers.policy import ParityClass

READY = torch.cuda.is_available()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not READY, reason="needs a CUDA device"),
]

SIDES = [(6144, 2560), (2560, 4096), (2560, 9728), (1024, 3072), (100, 416)]
BF16 = torch.bfloat16
SHORT = {
    "prompt_tokens": "512",
    "output_tokens": "32",
    "rounds": "1",
    "round_steps": "24",
    "ttft_repeats": "20",
    "concurrency": "1,4",
}
PUBLISHED_MEMORY_WIN = 2.63
"""Times less weight memory, of the published row."""


def drawn(rows: int, outputs: int, inputs: int, seed: int = 4) -> tuple[Tensor, Mxfp4Weight]:
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator, device="cuda").to(BF16)
    weight = torch.randn(outputs, inputs, generator=generator, device="cuda") * inputs**-0.5
    return x, quantise(weight.to(BF16))


def plain(weight: Mxfp4Weight, dtype: torch.dtype) -> Tensor:
    return dequantise_torch(weight.words, weight.codes, weight.outputs, weight.inputs, dtype)


def truth(x: Tensor, weight: Mxfp4Weight) -> Tensor:
    return x.double() @ plain(weight, torch.float64).t()


def error(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true).norm() / true.norm())


def plans(outputs: int, inputs: int, rows: int) -> Iterator[Plan]:
    yield plan_of(outputs, inputs, min(rows, 32), gate=False)
    for cut in ((1, 1, 1), (1, 4, 2), (2, 4, 4), (4, 4, 1), (1, 8, 5), (2, 8, 3), (1, 8, 10)):
        yield Plan(*cut)
    yield Plan(1, 8, 2, "start")
    yield Plan(1, 8, 4, "end")


def test_the_quantiser_gives_the_same_bits_as_on_a_cpu() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = (torch.randn(513, 2560, generator=generator) * 0.02).to(BF16)
    weight[:, ::41] *= 50.0
    here, there = quantise(weight), quantise(weight.cuda())
    assert torch.equal(here.words, there.words.cpu())
    assert torch.equal(here.codes, there.codes.cpu())


@pytest.mark.parametrize("inputs", [32, 96, 128, 2560])
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_the_dequantising_kernel_is_plain_dequantising(inputs: int, dtype: torch.dtype) -> None:
    _, weight = drawn(1, 1000, inputs)
    assert torch.equal(weight.dequantise(dtype), plain(weight, dtype))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 64])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_every_cut_gives_the_product_and_repeats_it(sides: tuple[int, int], rows: int) -> None:
    x, weight = drawn(rows, *sides)
    true = truth(x, weight)
    for plan in plans(*sides, rows):
        found = product(x, weight, Epilogue(), plan)
        assert error(found, true) < 2.0**-8, plan
        for _ in range(3):
            assert torch.equal(product(x, weight, Epilogue(), plan), found), plan


def test_the_subnormal_element_and_small_scales_are_not_flushed() -> None:
    weight = torch.zeros(16, 256, device="cuda")
    for row in range(16):
        weight[row] = 6.0 * 2.0 ** (1 - 7 * row)
        weight[row, row] = 0.5 * 2.0 ** (1 - 7 * row)
    x = torch.eye(16, 256, device="cuda", dtype=BF16)
    found = product(x, quantise(weight), Epilogue())
    assert torch.equal(found.float(), weight[:, :16].t())


@pytest.mark.parametrize("rows", [1, 5, 32])
def test_epilogues_add_gate_and_leave_squares(rows: int) -> None:
    x, weight = drawn(rows, 2560, 4096)
    bias = torch.randn(2560, device="cuda", dtype=BF16)
    residual = torch.randn(rows, 2560, device="cuda", dtype=BF16)
    plan = plan_of(2560, 4096, rows, gate=False)
    squares = torch.full((plan.programs(2560), rows), math.nan, device="cuda")
    found = product(x, weight, Epilogue(bias, residual, squares), plan)
    assert error(found, truth(x, weight) + bias + residual) < 2.0**-8
    torch.testing.assert_close(squares.sum(0), found.float().square().sum(1), rtol=1e-4, atol=1e-3)
    gate, up = truth(x, weight).chunk(2, dim=-1)
    for cut in (None, Plan(1, 4, 8), Plan(2, 8, 2, "start")):
        gated = product(x, weight, Epilogue(gate=True), cut)
        assert error(gated, functional.silu(gate) * up) < 2.0**-7, cut


@pytest.mark.parametrize("channels", [1024, 2560, 9728])
def test_the_norm_before_a_product_is_the_separate_one(channels: int) -> None:
    x, delta = torch.randn(2, 4, channels, device="cuda").to(BF16)
    weight, total = torch.rand(channels, device="cuda").to(BF16), torch.empty_like(x)
    found = stream_norm_triton(x, delta, weight, 1e-6, total)
    assert torch.equal(total, x + delta)
    true = torch.rms_norm(total.double(), (channels,), weight.double(), 1e-6)
    assert error(found, true) < 2.0**-8


@pytest.mark.parametrize(
    "case", LEVER.op_cases("on", "cuda") if READY else [], ids=lambda case: case.name
)
def test_every_case_is_inside_the_tolerance(case: OpCase) -> None:
    result = check_case(case, 0, Bar(tolerance=TOLERANCE.relative_error))
    assert result.status == "passed", result.fault
    assert result.parity is not ParityClass.BROKEN
    assert result.powerless == ()


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_a_captured_product_follows_its_inputs(rows: int) -> None:
    x, weight = drawn(rows, 2560, 4096)
    weight.linear(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = weight.linear(x)
    for seed in range(4):
        fresh, _ = drawn(rows, 16, 4096, seed=10 + seed)
        x.copy_(fresh)
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, weight.linear(x))


def session(**changes: str) -> DecodeSession:
    found = torch.cuda.get_device_properties(0)
    sms, memory = found.multi_processor_count, found.total_memory
    facts = DeviceFacts("cuda:0", found.name, memory, sm_count=sms)
    return open_session(DECODE.resolve({**SHORT, **changes}, facts), "cuda:0", 1, "engine")


def test_the_shipped_model_decodes_and_loses_little_quality() -> None:
    losses = {}
    for setting in (OFF, "on"):
        one = session(model="shipped", quality="on")
        with engaged(LEVER, one.sites, setting):
            one.warm_up()
            losses[setting] = one.measure().values["quality/nll"]
            one.exercise()
            plans_seen = dict(LEVER.witness(one.sites[SITE]))
    assert plans_seen["decode/tok_s/c1"] == "weights=Mxfp4Weight"
    assert losses["on"] == pytest.approx(losses[OFF], rel=0.1)
    assert losses["on"] != losses[OFF]


@pytest.mark.timing
def test_a_4b_model_takes_the_published_share_of_memory_and_decodes_faster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held, rates = {}, {}
    for setting in (OFF, "on"):
        one = session(model="random-4b")
        with engaged(LEVER, one.sites, setting):
            one.warm_up()
            values = one.measure().values
            rates[setting] = [values[f"decode/tok_s/c{c}"] for c in (1, 4)]
            held[setting] = stored_bytes(one._engine.weights)
        del one
        torch.cuda.empty_cache()
    with capsys.disabled():
        ratio = held[OFF] / held["on"]
        print(f"\nrandom-4b: {held[OFF]} bytes, {held['on']} in four bits, {ratio:.2f} times less")
        print(f"tok/s at c1 and c4: {rates[OFF]} and {rates['on']}")
    assert held[OFF] / held["on"] >= PUBLISHED_MEMORY_WIN
    assert rates["on"][0] > rates[OFF][0]
