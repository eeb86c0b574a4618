"""Op cases of the order of packed samples: the same samples behind each other in two orders.

Shapes: S samples, N packed rows, C channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.base import OpCase

LENGTHS = {
    "as measured": (5601, 1863, 601, 3125, 1159, 960, 2830, 3673),
    "rising": (1, 17, 129, 1024, 2048),
    "equal ones": (257, 640, 257, 640),
}
SHRUNK = 16
"""Lengths are divided by this where the device is no GPU."""


@dataclass(frozen=True, slots=True)
class OrderCase:
    """A projection under attention inside each sample, and a mean squared error over all rows.

    The rows may lie far from zero.
    """

    lengths: tuple[int, ...]
    channels: int
    offset: float
    device: str

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        """Rows and targets ``[N, C]`` in the order as drawn, and the weight ``[C, C]``, fp32."""
        generator = torch.Generator().manual_seed(seed)
        n, c = sum(self.lengths), self.channels
        x, target, weight = (torch.randn(s, c, generator=generator) for s in (n, n, c))
        return tuple(one.to(self.device) for one in (x + self.offset, target, weight / c**0.5))

    def outputs(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The samples' outputs ``[N, C]`` in the order as drawn, and the weight's gradient."""
        return torch.empty_like(inputs[0]), torch.empty_like(inputs[2])

    def packed(self, order: Sequence[int]) -> Callable[..., None]:
        """Both with the samples packed in that order."""

        def write(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
            for found, room in zip(self.found(inputs, order), outputs, strict=True):
                room.copy_(found)

        return write

    def found(self, inputs: tuple[Tensor, ...], order: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Outputs, put back in the order as drawn, and gradient."""
        x, target, weight = inputs
        leaf = weight.detach().requires_grad_()
        rows, wanted = (
            _ordered(torch.split(one, list(self.lengths)), order) for one in (x, target)
        )
        h = F.linear(rows, leaf)
        sizes = [self.lengths[index] for index in order]
        parts = [
            _attention(q, v)
            for q, v in zip(torch.split(h, sizes), torch.split(rows, sizes), strict=True)
        ]
        torch.autograd.backward(F.mse_loss(torch.cat(parts), wanted))
        assert leaf.grad is not None
        back = sorted(range(len(order)), key=order.__getitem__)
        return _ordered(parts, back).detach(), leaf.grad

    def truth(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """As drawn, in fp64."""
        return self.found(tuple(one.double() for one in inputs), range(len(self.lengths)))

    def case(self, name: str) -> OpCase:
        """As the op check takes it; two further orders bound the error."""
        drawn = range(len(self.lengths))
        rising = sorted(drawn, key=self.lengths.__getitem__)
        longest_first = sorted(drawn, key=self.lengths.__getitem__, reverse=True)
        return OpCase(
            name=f"{name}: {sum(self.lengths)} rows of {self.channels}, offset {self.offset:g}",
            inputs=self.inputs,
            outputs=self.outputs,
            reference=self.packed(drawn),
            candidate=self.packed(longest_first),
            truth=self.truth,
            elements=sum(self.lengths) * self.channels,
            reorderings=(self.packed(rising), self.packed(drawn[::-1])),
        )


def _ordered(parts: Sequence[Tensor], order: Sequence[int]) -> Tensor:
    return torch.cat([parts[index] for index in order])


def _attention(q: Tensor, v: Tensor) -> Tensor:
    """Of one head, the queries being the keys."""
    return F.scaled_dot_product_attention(q[None], q[None], v[None])[0]


def op_cases(device: str) -> Sequence[OpCase]:
    """Heads of 128 channels on CUDA, narrow and short elsewhere; centred and far from zero."""
    cuda = torch.device(device).type == "cuda"
    shrink, channels = (1, 128) if cuda else (SHRUNK, 32)
    found = []
    for (name, lengths), offset in itertools.product(LENGTHS.items(), (0.0, 10.0)):
        sizes = tuple(max(1, n // shrink) for n in lengths)
        found.append(OrderCase(sizes, channels, offset, device).case(name))
    return found
