"""The cases of the op check of the MLP's hidden layer: forward and backward against fp64.

A case's inputs are ``x [N, C], weight [F, C], bias [F], grad [N, F]``. Weight and bias are fp32
parameters whose values the rows' dtype holds exactly, so that truth is the product of what both
arms multiply. The Linear is the workload's: autocast on CUDA; on a CPU fp32 products of which the
result is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.base import OpCase
from levers.kernels.mlp_hidden import FusedMlpHidden, Linear

Tensors = tuple[Tensor, ...]
Call = Callable[[Tensor, Tensor, Tensor], Tensor]

CPU_SIZE = (32, 72)
CUDA_SIZE = (1536, 8192)
"""C and F."""

ROWS = (1, 129, 2222)
"""One token, a row more than a chunk of the backward's sums, a median sample."""


def _linear(dtype: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.device.type == "cuda" and dtype != torch.float32:
        with torch.autocast("cuda", dtype=dtype):
            return F.linear(x, weight, bias)
    return F.linear(x.to(weight.dtype), weight, bias).to(dtype)


def _published(linear: Linear, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(linear(x, weight, bias), approximate="tanh")


@dataclass(frozen=True)
class MlpCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`.

    ``scale`` multiplies the pre-activations, ``mean`` is added to their gradients, ``fill`` is put
    into one element of the rows.
    """

    rows: int
    dtype: torch.dtype
    device: str
    size: tuple[int, int]
    scale: float = 1.0
    mean: float = 0.0
    fill: float = 1.0

    def inputs(self, seed: int) -> Tensors:
        """Drawn on the CPU so that every device gets the same."""
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        channels, width = self.size
        x, weight = draw(self.rows, channels), draw(width, channels) / channels**0.5
        x[self.rows // 2, 1] = self.fill
        tensors = (x, self.scale * weight, 0.5 * draw(width), draw(self.rows, width) + self.mean)
        x, weight, bias, grad = (t.to(self.dtype).to(self.device) for t in tensors)
        return x, weight.float(), bias.float(), grad

    def hidden_like(self, inputs: Tensors) -> Tensors:
        """Room for the forward's ``[N, F]``."""
        return (torch.empty_like(inputs[3]),)

    def gradients_like(self, inputs: Tensors) -> Tensors:
        """Room for the gradients of rows, weight and bias."""
        return tuple(map(torch.empty_like, inputs[:3]))

    def reference(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The original."""
        return _published(partial(_linear, self.dtype), x, weight, bias)

    def candidate(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The fused layer."""
        return FusedMlpHidden(partial(_linear, self.dtype))(x, weight, bias)

    def forward(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """The hidden layer."""
        outputs[0].copy_(call(*inputs[:3]))

    def backward(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """The gradients, as autograd computes them."""
        leaves = tuple(t.detach().requires_grad_() for t in inputs[:3])
        found = torch.autograd.grad(call(*leaves), leaves, inputs[3])
        for out, gradient in zip(outputs, found, strict=True):
            out.copy_(gradient)

    def backward_reversed(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """The same gradients from the rows in reverse order: another order of their sums."""
        x, weight, bias, grad = inputs
        self.backward(call, (x.flip(0), weight, bias, grad.flip(0)), outputs)
        outputs[0].copy_(outputs[0].flip(0))

    def forward_truth(self, inputs: Tensors) -> Tensors:
        """The original in fp64."""
        return (_published(F.linear, *(t.double() for t in inputs[:3])),)

    def backward_truth(self, inputs: Tensors) -> Tensors:
        """The original's gradients in fp64."""
        leaves = tuple(t.detach().double().requires_grad_() for t in inputs[:3])
        return torch.autograd.grad(_published(F.linear, *leaves), leaves, inputs[3].double())

    def nonfinite(self, inputs: Tensors) -> Tensors:
        """Where the true hidden layer is not finite."""
        return (~torch.isfinite(self.forward_truth(inputs)[0]),)


def _forward_case(name: str, case: MlpCase, *, masked: bool = False) -> OpCase:
    return OpCase(
        name=f"forward {name}",
        inputs=case.inputs,
        outputs=case.hidden_like,
        reference=partial(case.forward, case.reference),
        candidate=partial(case.forward, case.candidate),
        truth=case.forward_truth,
        masks=case.nonfinite if masked else None,
        elements=case.rows * case.size[1],
    )


def _backward_case(name: str, case: MlpCase) -> OpCase:
    return OpCase(
        name=f"backward {name}",
        inputs=case.inputs,
        outputs=case.gradients_like,
        reference=partial(case.backward, case.reference),
        candidate=partial(case.backward, case.candidate),
        truth=case.backward_truth,
        elements=case.rows * case.size[1],
        reorderings=(partial(case.backward_reversed, case.reference),),
    )


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    cuda = torch.device(device).type == "cuda"
    make = partial(MlpCase, device=device, size=CUDA_SIZE if cuda else CPU_SIZE)
    bf16 = torch.bfloat16
    finite = {f"{rows} rows, bfloat16": make(rows, bf16) for rows in ROWS}
    for dtype in (torch.float16, torch.float32):
        finite[f"129 rows, {dtype}".replace("torch.", "")] = make(129, dtype)
    finite["300 rows of 33 to 57, bfloat16"] = make(300, bf16, size=(33, 57))
    finite["both tails, bfloat16"] = make(129, bf16, scale=20.0)
    finite["gradients with a mean, bfloat16"] = make(2222, bf16, mean=1.0)
    finite["subnormal, bfloat16"] = make(129, bf16, scale=1e-39)
    cases = []
    for name, case in finite.items():
        cases += [_forward_case(name, case), _backward_case(name, case)]
    for name, wild in (("NaN", math.nan), ("Inf", math.inf)):
        case = make(129, bf16, fill=wild)
        cases.append(_forward_case(f"{name}, bfloat16", case, masked=True))
    return tuple(cases)
