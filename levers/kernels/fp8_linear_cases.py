"""The cases of the op check of the 8-bit Linear: output and three gradients against fp64.

A case's inputs are ``x [N, C]``, ``weight [F, C]`` and ``bias [F]`` in fp32, and the output's
gradient in bf16. Truth is the product of what is given, not of what it was rounded to: rounding to
8 bits is part of the operation here. Sums that cancel are not among them: a product of operands
with 3 bits of mantissa has no relative accuracy below the size of its terms, whatever its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.base import OpCase
from levers.kernels.fp8_linear import GRADIENTS, OUT, Fp8Product

Tensors = tuple[Tensor, ...]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]

CUDA_SIDES = {"wide": (1536, 8192), "narrow": (8192, 1536), "condition": (1024, 3072)}
CPU_SIDES = {"wide": (64, 256), "narrow": (256, 64), "condition": (32, 128)}
"""Inputs and outputs of the Linears: the 1.3 B model's, and small ones."""

OUTLIER = 100.0
TINY = 1e-20
MEAN = 8.0


def plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The original: bf16 products on CUDA, fp32 ones on a CPU, returned in bf16."""
    if x.device.type != "cuda" or bias is None:
        return F.linear(x.to(weight.dtype), weight, bias).to(OUT)
    return F.linear(x.to(OUT), weight.to(OUT), bias.to(OUT))


Fill = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Turns standard normal inputs and gradients into the case's."""


def _as_drawn(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return x, grad


def _outliers(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Some channels that are a hundred times larger set the scale of all."""
    x[:, ::7] *= OUTLIER
    grad[:, ::5] *= OUTLIER
    return x, grad


def _shifted(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """A large mean, where neighbours round to the same value."""
    return x + MEAN, grad + 1.0


def _tiny(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients far below what 8 bits hold without a scale."""
    return x, grad * TINY


def _nonfinite(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """A NaN in the first row, an infinity in the last."""
    x[0, 0], x[-1, 1] = torch.nan, torch.inf
    return x, grad


@dataclass(frozen=True)
class LinearCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`."""

    rows: int
    inputs_outputs: tuple[int, int]
    device: str
    fill: Fill = _as_drawn
    dtype: torch.dtype = torch.bfloat16

    def inputs(self, seed: int) -> Tensors:
        """``x, weight, bias, grad``, drawn on the CPU so that every device gets the same."""
        generator = torch.Generator().manual_seed(seed)
        inputs, outputs = self.inputs_outputs
        weight = torch.randn(outputs, inputs, generator=generator) * inputs**-0.5
        bias = torch.randn(outputs, generator=generator)
        x = torch.randn(self.rows, inputs, generator=generator)
        grad = torch.randn(self.rows, outputs, generator=generator)
        x, grad = self.fill(x, grad)
        drawn = (x.to(self.dtype), weight, bias, grad.to(OUT))
        return tuple(one.to(self.device) for one in drawn)

    def outputs(self, inputs: Tensors) -> Tensors:
        """Room for the output and the gradients of x, weight and bias."""
        x, weight, bias, grad = inputs
        return tuple(map(torch.empty_like, (grad, x, weight, bias)))

    def compute(self, linear: Linear, inputs: Tensors) -> Tensors:
        """Output and gradients, as autograd computes them."""
        leaves = [one.detach().requires_grad_() for one in inputs[:3]]
        out = linear(leaves[0], leaves[1], leaves[2])
        return (out.detach(), *torch.autograd.grad(out, leaves, inputs[3]))

    def write(self, linear: Linear, inputs: Tensors, outputs: Tensors) -> None:
        """The same into given tensors."""
        for room, found in zip(outputs, self.compute(linear, inputs), strict=True):
            room.copy_(found)

    def truth(self, inputs: Tensors) -> Tensors:
        """The same in fp64."""
        return self.compute(F.linear, tuple(one.double() for one in inputs))

    def nonfinite(self, inputs: Tensors) -> Tensors:
        """Where truth is not finite."""
        return tuple(~torch.isfinite(one) for one in self.truth(inputs))


def op_cases(setting: str, device: str) -> Sequence[OpCase]:
    """All cases of a gradient format for a device."""
    cuda = torch.device(device).type == "cuda"
    sides, rows = (CUDA_SIDES, 2051) if cuda else (CPU_SIDES, 203)
    make = partial(LinearCase, device=device)
    wide = sides["wide"]
    cases = {f"{name}, {rows} rows": make(rows, pair) for name, pair in sides.items()}
    cases |= {
        "one row": make(1, wide),
        "a multiple of 16 rows": make(160, wide),
        "fp32 inputs": make(rows, wide, dtype=torch.float32),
        "outliers": make(rows, wide, fill=_outliers),
        "large mean": make(rows, wide, fill=_shifted),
        "tiny gradients": make(rows, wide, fill=_tiny),
        "NaN and Inf": make(rows, wide, fill=_nonfinite),
    }
    return tuple(_op_case(name, setting, case) for name, case in cases.items())


def _op_case(name: str, setting: str, case: LinearCase) -> OpCase:
    inputs, outputs = case.inputs_outputs
    return OpCase(
        name=f"{name}, gradients {setting}",
        inputs=case.inputs,
        outputs=case.outputs,
        reference=partial(case.write, plain),
        candidate=partial(case.write, Fp8Product(plain, GRADIENTS[setting])),
        truth=case.truth,
        masks=case.nonfinite if case.fill is _nonfinite else None,
        elements=case.rows * (inputs + outputs) + inputs * outputs,
    )
