"""The graph and memory checks on a CUDA device."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from experiments.parity import graph, sanitizer_tool
from levers.base import OpCase

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Tensors = tuple[Tensor, ...]


def double(inputs: Tensors, outputs: Tensors) -> None:
    torch.mul(inputs[0], 2, out=outputs[0])


def case() -> OpCase:
    def draw(seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(64, 64, generator=generator).cuda(),)

    return OpCase(
        name="double",
        inputs=draw,
        outputs=lambda given: (torch.empty_like(given[0]),),
        reference=double,
        candidate=double,
        truth=lambda given: (given[0].double() * 2,),
    )


def test_a_captured_operation_gives_what_the_eager_one_gives() -> None:
    assert graph.replay_case(case(), 1, double) == ""


def test_a_kernel_that_is_not_recorded_is_found() -> None:
    def unrecorded(inputs: Tensors, outputs: Tensors) -> None:
        if torch.cuda.is_current_stream_capturing():
            outputs[0].add_(0)
        else:
            double(inputs, outputs)

    fault = graph.replay_case(case(), 1, unrecorded)
    assert fault == "the replay gives other bits than the eager call"


def test_a_kernel_that_replays_for_nothing_is_found_by_its_missing_launches() -> None:
    def skipping(inputs: Tensors, outputs: Tensors) -> None:
        double(inputs, outputs)
        if not torch.cuda.is_current_stream_capturing():
            torch.sigmoid(inputs[0])

    fault = graph.replay_case(case(), 1, skipping)
    assert fault is not None
    assert "the replay lacks" in fault


def test_an_operation_that_synchronises_cannot_be_captured() -> None:
    def syncing(inputs: Tensors, outputs: Tensors) -> None:
        double(inputs, outputs)
        outputs[0].sum().item()

    fault = graph.replay_case(case(), 1, syncing)
    assert fault is not None
    assert "cannot be captured" in fault


def test_inputs_of_another_shape_cannot_be_compared() -> None:
    def ragged(seed: int) -> Tensors:
        return (torch.ones(seed, 8, device="cuda"),)

    assert graph.replay_case(replace(case(), inputs=ragged), 3, double) is None


@pytest.mark.skipif(sanitizer_tool.find_sanitizer() is None, reason="needs compute-sanitizer")
def test_the_sanitizer_sees_the_planted_stray_write() -> None:
    sanitizer = sanitizer_tool.find_sanitizer()
    assert sanitizer is not None
    variables, _ = sanitizer_tool.sanitizer_environment(os.environ)
    report = sanitizer_tool.run_tool(sanitizer, "memcheck", ["--control"], variables)
    assert report.errors, report.text
