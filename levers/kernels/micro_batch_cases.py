"""Op cases of the split into micro-batches: gradients that add up, in two splits, against fp64.

Shapes: S samples of n rows, C channels in, F channels out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.base import OpCase

SAMPLES = 24
REFERENCE_SIZE = 6
"""Samples of a micro-batch of the reference: another size than any setting's."""


@dataclass(frozen=True, slots=True)
class SplitCase:
    """A Linear under a mean squared error; the samples' rows may lie far from zero."""

    tokens: int
    channels: int
    offset: float
    device: str
    size: int

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        """Rows ``[S, n, C]``, targets ``[S, n, F]`` and the weight ``[F, C]``, fp32."""
        generator = torch.Generator().manual_seed(seed)
        c = self.channels
        shapes = ((SAMPLES, self.tokens, c), (SAMPLES, self.tokens, c), (c, c))
        x, target, weight = (torch.randn(shape, generator=generator) for shape in shapes)
        drawn = (x + self.offset, target, weight / c**0.5)
        return tuple(one.to(self.device) for one in drawn)

    def outputs(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The weight's gradient."""
        return (torch.empty_like(inputs[2]),)

    def split(self, size: int) -> Any:
        """The gradient, accumulated over micro-batches of that size."""

        def write(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
            outputs[0].copy_(gradient(inputs, size))

        return write

    def truth(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The gradient of all samples at once in fp64."""
        return (gradient(tuple(one.double() for one in inputs), SAMPLES),)

    def case(self) -> OpCase:
        """As the op check takes it; the reference's other valid splits bound the error."""
        others: tuple[Callable[..., None], ...] = tuple(map(self.split, (1, 3, SAMPLES)))
        return OpCase(
            name=f"{SAMPLES} x {self.tokens} rows of {self.channels}, offset {self.offset:g}, "
            f"micro-batches of {self.size}",
            inputs=self.inputs,
            outputs=self.outputs,
            reference=self.split(REFERENCE_SIZE),
            candidate=self.split(self.size),
            truth=self.truth,
            elements=SAMPLES * self.tokens * self.channels,
            reorderings=others,
        )


def gradient(inputs: tuple[Tensor, ...], size: int) -> Tensor:
    """Of the mean over all elements, each micro-batch counting by its share of the rows."""
    x, target, weight = inputs
    leaf = weight.detach().requires_grad_()
    for first in range(0, SAMPLES, size):
        part = slice(first, first + size)
        loss = F.mse_loss(F.linear(x[part], leaf), target[part])
        torch.autograd.backward(loss * (len(x[part]) / SAMPLES))
    assert leaf.grad is not None
    return leaf.grad


def op_cases(size: int, device: str) -> Sequence[OpCase]:
    """At the width of the 1.3 B model on CUDA, narrow elsewhere; centred and far from zero."""
    cuda = torch.device(device).type == "cuda"
    tokens, channels = (512, 1536) if cuda else (64, 96)
    return [
        SplitCase(tokens, channels, offset, device, size).case() for offset in (0.0, 1.0, 100.0)
    ]
