"""The fused decode levers on a CUDA device: bits, fp64, captures, launches that start early.

``pytest -s`` shows how many op cases are bit for bit equal, and a table of step times.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.workload import DECODE
from levers.base import OpCase, engaged
from levers.decode_lever import DecodeLever
from levers.fused_block import LEVER as FUSED_BLOCK
from levers.fused_block import SITE as BLOCK
from levers.fused_chain import LEVER as FUSED_CHAIN
from levers.kernels import decode_qk_rope_cases
from levers.kernels.gemv import Norm, Scratch, fused_linear, plain_linear
from levers.kernels.gemv_tilings import FEW_ROWS, ONE_ROW, candidates, tiling
from levers.policy import ParityClass
from levers.qk_norm_rope import LEVER as QK_NORM_ROPE
from tests.gpu.test_decode_gpu import facts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHORT = {
    "prompt_tokens": "512",
    "output_tokens": "32",
    "rounds": "1",
    "round_steps": "24",
    "ttft_repeats": "20",
    "concurrency": "1,4",
}
LEVERS = (FUSED_CHAIN, QK_NORM_ROPE, FUSED_BLOCK)
BAR = Bar(tolerance=None, byte_exact=False, repeats=3)


def cases(*levers: DecodeLever, setting: str = "on") -> list[object]:
    return [
        pytest.param(case, id=f"{lever.name}: {case.name}")
        for lever in (levers if torch.cuda.is_available() else ())
        for case in lever.op_cases(setting, "cuda")
    ]


def session(**changes: str) -> DecodeSession:
    return open_session(DECODE.resolve({**SHORT, **changes}, facts()), "cuda:0", 1, "engine")


@pytest.mark.parametrize("case", cases(FUSED_CHAIN))
def test_the_exact_lever_gives_the_bits_of_the_library(case: OpCase) -> None:
    found = check_case(case, 1, BAR)
    assert found.status == "passed", found.fault
    assert found.parity is ParityClass.BYTE_EXACT, (
        f"lossless alone: error {found.norm_ratio:.4f} x the reference's"
    )


@pytest.mark.parametrize("case", cases(QK_NORM_ROPE))
def test_norm_and_rope_are_no_further_from_fp64_than_the_library(case: OpCase) -> None:
    found = check_case(case, 1, BAR)
    assert found.status == "passed", found.fault
    assert found.deterministic


@pytest.mark.parametrize("case", [*cases(FUSED_BLOCK), *cases(FUSED_BLOCK, setting="early")[4::5]])
def test_the_fused_block_is_no_further_from_fp64_than_the_library(case: OpCase) -> None:
    found = check_case(case, 1, BAR)
    assert found.status == "passed", found.fault
    assert found.deterministic


def draw(count: int, weight_rows: int, inputs: int) -> tuple[Tensor, Norm, Tensor]:
    source = torch.Generator("cuda").manual_seed(count + weight_rows + inputs)
    x, delta = torch.randn(2, count, inputs, device="cuda", generator=source).bfloat16()
    norm = 1 + 0.1 * torch.randn(inputs, device="cuda", generator=source)
    weight = torch.randn(weight_rows, inputs, device="cuda", generator=source) * inputs**-0.5
    return x, Norm(norm.bfloat16(), 1e-6, delta, torch.empty_like(x)), weight.bfloat16()


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


SHAPES = sorted({*ONE_ROW, *FEW_ROWS})


@pytest.mark.parametrize("count", [1, 2, 16, 32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_cut_of_the_table_and_early_launches_give_the_product(
    shape: tuple[int, int, bool], count: int
) -> None:
    outputs, inputs, swiglu = shape
    x, norm, weight = draw(count, outputs * (2 if swiglu else 1), inputs)
    for used in (None, norm):
        own = tiling(count, outputs, inputs, swiglu=swiglu, norm=used is not None)
        truth = plain_linear(x.float(), weight.float(), _wide(used), swiglu=swiglu).double()
        results = []
        for tile in (own, replace(own, early=True)):
            scratch = Scratch()
            results += [
                fused_linear(x, weight, used, swiglu=swiglu, scratch=scratch, tile=tile)
                for _ in range(10)
            ]
        assert all(torch.equal(results[0], other) for other in results[1:])
        assert relative(results[0], truth) < 4e-3


def _wide(norm: Norm | None) -> Norm | None:
    if norm is None or norm.delta_NC is None or norm.sum_NC is None:
        return None
    delta, total = norm.delta_NC.float(), torch.empty_like(norm.sum_NC, dtype=torch.float32)
    return Norm(norm.weight_C.float(), norm.eps, delta, total)


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("shape", [(1024, 3072, False), (3072, 1024, True)], ids=str)
def test_each_cut_that_a_sweep_tries_gives_the_product(
    shape: tuple[int, int, bool], count: int
) -> None:
    from triton.runtime.errors import OutOfResources

    outputs, inputs, swiglu = shape
    x, _, weight = draw(count, outputs * (2 if swiglu else 1), inputs)
    truth = plain_linear(x.double(), weight.double(), None, swiglu=swiglu)
    wrong, too_large = [], []
    for tile in candidates(count, outputs, inputs, swiglu=swiglu):
        try:
            found = fused_linear(x, weight, swiglu=swiglu, scratch=Scratch(), tile=tile)
        except OutOfResources:
            too_large.append(str(tile))
            continue
        if relative(found, truth) >= 4e-3:
            wrong.append(str(tile))
    assert wrong == []
    assert len(too_large) < 4, too_large


def test_keys_and_values_go_into_the_cache_as_the_separate_copy_puts_them() -> None:
    from levers.kernels.decode_qk_rope_triton import qk_norm_rope_triton

    for size in decode_qk_rope_cases.SIZES.values():
        h, k, d, _ = size
        for count in (1, 5, 32):
            case = decode_qk_rope_cases._case(size, count, torch.bfloat16, "cuda")
            packed, cos, sin, *norms = case.inputs(0)
            weights = (norms[0], norms[1]) if norms else None
            q, keys, values = qk_norm_rope_triton(packed, weights, (cos, sin), (h, k), 1e-6)
            k_RD, v_RD = torch.zeros(2, 4096, d, device="cuda").bfloat16()
            rows = torch.randperm(4096, device="cuda")[: count * k]
            stored = (k_RD, v_RD, rows)
            again, _, _ = qk_norm_rope_triton(packed, weights, (cos, sin), (h, k), 1e-6, stored)
            assert torch.equal(again, q)
            assert torch.equal(k_RD[rows].view(count, k, d), keys)
            assert torch.equal(v_RD[rows].view(count, k, d), values)
            assert int((k_RD != 0).any(1).sum()) <= count * k


@pytest.mark.parametrize("lever", LEVERS, ids=[lever.name for lever in LEVERS])
@pytest.mark.parametrize("kv", ["paged", "contiguous"])
def test_a_captured_step_decodes_what_an_eager_one_does(lever: DecodeLever, kv: str) -> None:
    arguments = {"want": "tokens", "prompts": 8, "concurrency": 4}
    streams = []
    for graph in ("off", "on"):
        one = session(graph=graph, kv=kv)
        with engaged(lever, one.sites, "on"):
            streams.append(one.outputs(arguments).streams)
    assert streams[0] == streams[1]


def test_the_exact_lever_changes_no_logit() -> None:
    digests = []
    for setting in ("off", "on"):
        one = session()
        with engaged(FUSED_CHAIN, one.sites, setting):
            digests.append(one.outputs({"want": "digests"}).digests)
    assert digests[0] == digests[1]


def test_the_fused_block_decodes_the_same_tokens_but_for_near_ties() -> None:
    arguments = {"want": "tokens", "prompts": 16, "concurrency": 4}
    streams = []
    for setting in ("off", "on"):
        one = session()
        with engaged(FUSED_BLOCK, one.sites, setting):
            streams.append(one.outputs(arguments).streams)
            plans = plans_of(one)
    same = sum(a.tokens == b.tokens for a, b in zip(*streams, strict=True))
    print(f"\n{same} of 16 streams equal; {plans}")
    assert same >= 12
    assert all("fused_block" in plan for plan in plans.values())


def plans_of(one: DecodeSession) -> Mapping[str, str]:
    one.sites[BLOCK].forget()
    one.exercise()
    return FUSED_BLOCK.witness(one.sites[BLOCK])


def test_early_launches_change_no_logit_of_a_captured_step() -> None:
    digests = []
    for setting in ("on", "early"):
        one = session(concurrency="1,4,8")
        with engaged(FUSED_BLOCK, one.sites, setting):
            digests += [one.outputs({"want": "digests"}).digests for _ in range(5)]
    assert all(one == digests[0] for one in digests[1:])


@pytest.mark.timing
def test_the_fused_block_makes_the_step_of_the_small_model_faster() -> None:
    one = session(model="random-0.6b", prompt_tokens="2048", concurrency="1,8", ttft_tokens="64")
    times: dict[str, dict[int, float]] = {}
    for setting in ("off", "on", "early"):
        with engaged(FUSED_BLOCK, one.sites, setting):
            one.renew()
            one.warm_up()
            times[setting] = {c: 1e3 * statistics.median(one._decode(c, 24)) for c in (1, 8)}
    print(f"\nmilliseconds of a step: {times}")
    assert times["on"][1] < times["off"][1]
