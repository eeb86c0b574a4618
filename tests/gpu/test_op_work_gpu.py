"""Kernels of both arms of an op case on a CUDA device: the same work is seen as such."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.parity import op_work
from levers import catalog
from levers.base import OpCase

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
Tensors = tuple[Tensor, ...]
DEVICE = "cuda:0"


def linear(inputs: Tensors, outputs: Tensors) -> None:
    outputs[0].copy_(torch.nn.functional.linear(*inputs))


def product(inputs: Tensors, outputs: Tensors) -> None:
    outputs[0].copy_(inputs[0] @ inputs[1].T)


def in_two(inputs: Tensors, outputs: Tensors) -> None:
    for rows in (slice(0, 32), slice(32, 64)):
        outputs[0][rows] = torch.nn.functional.linear(inputs[0][rows], inputs[1])


@triton.jit  # type: ignore[untyped-decorator]
def add_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + 1.0)


def adding(warps: int) -> Any:
    def call(inputs: Tensors, outputs: Tensors) -> None:
        add_kernel[(outputs[0].numel() // 256,)](inputs[0], outputs[0], BLOCK=256, num_warps=warps)

    return call


def case(reference: Any, candidate: Any, *shapes: tuple[int, ...]) -> OpCase:
    return OpCase(
        name="planted",
        inputs=lambda seed: tuple(torch.randn(shape, device=DEVICE) for shape in shapes),
        outputs=lambda given: (torch.empty(64, 64, device=DEVICE),),
        reference=reference,
        candidate=candidate,
        truth=lambda given: (given[0].double(),),
    )


def same(planted: OpCase) -> str:
    inputs = planted.inputs(1)
    for call in (planted.reference, planted.candidate):
        call(inputs, planted.outputs(inputs))  # what is compiled or loaded at a first call
    return op_work.same(planted, inputs)


def test_wrappers_around_the_same_kernels_are_the_same_work() -> None:
    assert "both arms do the same work" in same(case(linear, product, (64, 64), (64, 64)))
    assert same(case(linear, in_two, (64, 64), (64, 64))) == ""


def test_launches_of_one_triton_kernel_are_told_apart_by_their_options() -> None:
    assert "add_kernel" in same(case(adding(4), adding(4), (64, 64)))
    assert same(case(adding(4), adding(8), (64, 64))) == ""


def test_a_replay_is_another_launch_of_the_same_kernels() -> None:
    for planted in catalog.get("cuda_graph").op_cases("on", DEVICE)[:3]:
        assert same(planted) == ""


@pytest.mark.parametrize(
    "name", ["fused_chain", "fused_block", "qk_norm_rope", "segment_sum_broadcast"]
)
def test_the_levers_cases_compare_something_on_a_device(name: str) -> None:
    cases = catalog.get(name).op_cases("on", DEVICE)[::8]
    compared = [planted for planted in cases if not same(planted)]
    assert len(compared) >= len(cases) - 1
