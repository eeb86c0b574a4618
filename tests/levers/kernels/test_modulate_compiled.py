"""The fused row operations inside ``torch.compile``: one graph, no break, the eager gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from levers.kernels.affine_norm import affine_norm
from levers.kernels.gate_residual import gate_residual
from levers.kernels.modulate import modulate
from levers.kernels.segment_sum_cases import CutByOffsets

LENGTHS, CHANNELS = (5, 7, 3), 8


def rows_of_a_block(
    x: Tensor, mod: Tensor, weight: Tensor, bias: Tensor, segments: CutByOffsets
) -> Tensor:
    shift, scale, gate = mod.chunk(6, dim=1)[:3]
    h, x = modulate(x, shift, scale, segments)
    h, x = affine_norm(gate_residual(x, h, gate, segments), weight, bias)
    return h + x


def part_of_a_block(x: Tensor, mod: Tensor, segments: CutByOffsets) -> tuple[Tensor, Tensor]:
    """As a compiled part ends: its input leaves it again, beside what was made of it."""
    shift, scale = mod.chunk(6, dim=1)[:2]
    h, x = modulate(x, shift, scale, segments)
    return x, h.sin()


# Dynamo itself makes an instance of the autograd functions that it traces.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_graph_holds_them_without_a_break() -> None:
    draw = torch.Generator().manual_seed(2)
    shapes = ((sum(LENGTHS), CHANNELS), (len(LENGTHS), 6 * CHANNELS), (CHANNELS,), (CHANNELS,))
    leaves = [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]
    offsets = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32)
    segments = CutByOffsets(offsets)
    assert len(segments.offsets) == len(LENGTHS) + 1
    compiled = torch.compile(rows_of_a_block, backend="aot_eager", fullgraph=True)
    eager, graph = rows_of_a_block(*leaves, segments), compiled(*leaves, segments)
    torch.testing.assert_close(graph, eager)
    grad = torch.randn(eager.shape, generator=draw)
    for ours, theirs in zip(
        torch.autograd.grad(graph, leaves, grad),
        torch.autograd.grad(eager, leaves, grad),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_stream_that_leaves_the_graph_has_the_eager_gradient() -> None:
    draw = torch.Generator().manual_seed(3)
    shapes = ((sum(LENGTHS), CHANNELS), (len(LENGTHS), 6 * CHANNELS))
    leaves = [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]
    segments = CutByOffsets(torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32))
    assert len(segments.offsets) == len(LENGTHS) + 1
    grads = torch.randn((2, *shapes[0]), generator=draw).unbind()
    found = []
    for call in (
        part_of_a_block,
        torch.compile(part_of_a_block, backend="aot_eager", fullgraph=True),
    ):
        results = call(*leaves, segments)
        found.append((*results, *torch.autograd.grad(results, leaves, grads)))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager)
