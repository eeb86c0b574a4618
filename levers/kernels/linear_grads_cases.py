"""The cases of the op check of the Linear with fp32 gradients: output and gradients against fp64.

A case's inputs are ``x [N, C]``, ``weight [F, C]``, ``bias [F]`` and the output's gradient ``[N,
F]``. Weight and bias are fp32 parameters whose values the multiplying dtype holds exactly, so that
truth is the product of what both arms multiply. Both run under autocast; one case runs without it,
with fp32 products whose result is rounded, as the workload does on a CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.base import OpCase
from levers.kernels.linear_grads import FusedLinearGrads, Linear

Tensors = tuple[Tensor, ...]
Fill = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Turns standard normal inputs and gradients into the case's."""

CUDA_SIDES = {"wide": (1536, 8192), "narrow": (8192, 1536), "condition": (1024, 3072)}
CPU_SIDES = {"wide": (32, 136), "narrow": (136, 32), "condition": (24, 72)}
"""Inputs and outputs of the Linears: the 1.3 B model's, and small ones."""

CUDA_ROWS, CPU_ROWS = 2051, 331
"""Neither is a multiple of what a program of the column sums takes."""

ALL = (True, True, True)
MEAN = 8.0
TINY = 1e-30
DRIFT = 0.0625


@dataclass(frozen=True, slots=True)
class Products:
    """The dtypes of a Linear without autocast."""

    matmul: torch.dtype
    stream: torch.dtype

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiplied in ``matmul`` and returned in ``stream``."""
        return F.linear(x.to(self.matmul), weight, bias).to(self.stream)


CPU_PRODUCTS = Products(torch.float32, torch.bfloat16)


def _as_drawn(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return x, grad


def _shifted(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Large means, so that a running sum soon dwarfs what is added to it."""
    return x + MEAN, grad + MEAN


def _cancelling(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients that cancel in pairs of rows but for a small part."""
    half = len(grad) // 2
    grad[half : 2 * half] = DRIFT - grad[:half]
    return x, grad


def _tiny(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients near the least exponent of bf16."""
    return x, grad * TINY


def _nonfinite(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """A NaN in the first row, an infinity in the last, and one of each in the gradients."""
    x[0, 0], x[-1, 1] = torch.nan, torch.inf
    grad[1, 0], grad[-2, 1] = torch.nan, torch.inf
    return x, grad


@dataclass(frozen=True)
class LinearCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`.

    ``dtype`` is what is multiplied under autocast; ``x_dtype`` that of the rows, or None for the
    same; ``trained`` says whether rows, weight and bias need a gradient.
    """

    rows: int
    sides: tuple[int, int]
    device: str
    fill: Fill = _as_drawn
    dtype: torch.dtype = torch.bfloat16
    x_dtype: torch.dtype | None = None
    trained: tuple[bool, bool, bool] = ALL
    autocast: bool = True

    def inputs(self, seed: int) -> Tensors:
        """``x, weight, bias, grad``, drawn on the CPU so that every device gets the same."""
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        inputs, outputs = self.sides
        weight, bias = draw(outputs, inputs) * inputs**-0.5, draw(outputs)
        x, grad = self.fill(draw(self.rows, inputs), draw(self.rows, outputs))
        parameters = (one.to(self.dtype).float() for one in (weight, bias))
        drawn = (x.to(self.x_dtype or self.dtype), *parameters, grad.to(self.dtype))
        return tuple(one.to(self.device) for one in drawn)

    def outputs(self, inputs: Tensors) -> Tensors:
        """Room for the output and the gradients of what is trained."""
        return tuple(map(torch.empty_like, (inputs[3], *self._trained(inputs))))

    def _trained(self, inputs: Tensors) -> list[Tensor]:
        return [one for one, trained in zip(inputs, self.trained, strict=False) if trained]

    def compute(self, linear: Linear, inputs: Tensors) -> Tensors:
        """Output and gradients, as autograd computes them."""
        pairs = zip(inputs, self.trained, strict=False)
        leaves = [one.detach().requires_grad_(trained) for one, trained in pairs]
        with self._context(inputs[0]):
            out = linear(leaves[0], leaves[1], leaves[2])
        return (out.detach(), *torch.autograd.grad(out, self._trained(tuple(leaves)), inputs[3]))

    def _context(self, x: Tensor) -> contextlib.AbstractContextManager[object]:
        if self.autocast and x.dtype != torch.float64:
            return torch.autocast(x.device.type, dtype=self.dtype)
        return contextlib.nullcontext()

    @property
    def original(self) -> Linear:
        """PyTorch's under autocast, or the one with fp32 products."""
        return F.linear if self.autocast else CPU_PRODUCTS.linear

    def reference(self, inputs: Tensors, outputs: Tensors) -> None:
        """The original."""
        _copy(self.compute(self.original, inputs), outputs)

    def candidate(self, inputs: Tensors, outputs: Tensors) -> None:
        """Ours."""
        _copy(self.compute(FusedLinearGrads(self.original), inputs), outputs)

    def from_the_end(self, inputs: Tensors, outputs: Tensors) -> None:
        """The original with the rows in reverse order: another order of the gradients' sums."""
        x, weight, bias, grad = inputs
        found = self.compute(self.original, (x.flip(0), weight, bias, grad.flip(0)))
        by_rows = 2 if self.trained[0] else 1
        _copy((*(one.flip(0) for one in found[:by_rows]), *found[by_rows:]), outputs)

    def truth(self, inputs: Tensors) -> Tensors:
        """The same in fp64."""
        return self.compute(F.linear, tuple(one.double() for one in inputs))

    def nonfinite(self, inputs: Tensors) -> Tensors:
        """Where truth is not finite."""
        return tuple(~torch.isfinite(one) for one in self.truth(inputs))


def _copy(found: Tensors, outputs: Tensors) -> None:
    for room, one in zip(outputs, found, strict=True):
        room.copy_(one)


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    cuda = torch.device(device).type == "cuda"
    sides, rows = (CUDA_SIDES, CUDA_ROWS) if cuda else (CPU_SIDES, CPU_ROWS)
    make = partial(LinearCase, device=device)
    wide = sides["wide"]
    cases = {f"{name}, {rows} rows": make(rows, pair) for name, pair in sides.items()}
    cases |= {
        "one row": make(1, wide),
        "64 rows": make(64, wide),
        "300 rows of 33 to 57": make(300, (33, 57)),
        "fp32 rows": make(rows, wide, x_dtype=torch.float32),
        "float16": make(rows, wide, dtype=torch.float16),
        "fp32 products": make(rows, wide, autocast=False),
        "frozen weight and bias": make(rows, wide, trained=(True, False, False)),
        "frozen weight": make(rows, wide, trained=(True, False, True)),
        "frozen bias": make(rows, wide, trained=(True, True, False)),
        "rows without a gradient": make(rows, sides["condition"], trained=(False, True, True)),
        "large means": make(rows, wide, fill=_shifted),
        "cancelling gradients": make(rows, wide, fill=_cancelling),
        "tiny gradients": make(rows, wide, fill=_tiny),
        "NaN and Inf": make(rows, wide, fill=_nonfinite),
    }
    return tuple(_op_case(name, case) for name, case in cases.items())


def _op_case(name: str, case: LinearCase) -> OpCase:
    inputs, outputs = case.sides
    return OpCase(
        name=name,
        inputs=case.inputs,
        outputs=case.outputs,
        reference=case.reference,
        candidate=case.candidate,
        truth=case.truth,
        masks=case.nonfinite if case.fill is _nonfinite else None,
        elements=case.rows * (inputs + outputs) + inputs * outputs,
        reorderings=(case.from_the_end,),
    )
