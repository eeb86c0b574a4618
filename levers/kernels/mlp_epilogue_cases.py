"""The cases of the op check of the MLP as two products each way: output and gradients against fp64.

A case's inputs are ``x [N, C], up [F, C], up_bias [F], down [C, F], down_bias [C]`` and the
output's gradient ``[N, C]``. The parameters are fp32, with values that the multiplying dtype holds
exactly, so that truth is the product of what both arms multiply. Both arms run under autocast on
CUDA; on a CPU with fp32 products whose results are rounded, as the workload does there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.base import OpCase
from levers.kernels.mlp_epilogue import EpilogueMlps, Fusion

Tensors = tuple[Tensor, ...]
Mlp = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

CUDA_SIZE, CPU_SIZE = (1536, 8192), (32, 136)
"""Channels and hidden width: the 1.3 B model's, and a small one."""

CUDA_ROWS, CPU_ROWS = 2051, 331
"""No multiple of any tile."""

ALL = (True,) * 5
MEAN = 4.0
TINY = 1e-30


@dataclass(frozen=True, slots=True)
class Dtypes:
    """What is multiplied, and what is returned."""

    matmul: torch.dtype
    stream: torch.dtype


class PublishedMlp:
    """The original, which names its dtypes."""

    def __init__(self, precision: Dtypes, *, autocast: bool) -> None:
        self.precision, self.autocast = precision, autocast

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """By autocast, or multiplied in one dtype and rounded to the other."""
        if self.autocast:
            return F.linear(x, weight, bias)
        return F.linear(x.to(self.precision.matmul), weight, bias).to(self.precision.stream)

    def __call__(
        self, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor
    ) -> Tensor:
        """``[N, C]``."""
        active = F.gelu(self.linear(x, up, up_bias), approximate="tanh")
        return self.linear(active, down, down_bias)


@dataclass(frozen=True)
class MlpCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`.

    ``scale`` multiplies the pre-activations, ``mean`` is added to the output's gradients and
    ``small`` multiplies them, ``fill`` is put into one element of the rows; ``x_dtype`` is that of
    the rows, or None for the same; ``trained`` says which inputs need a gradient.
    """

    rows: int
    size: tuple[int, int]
    device: str
    fusion: Fusion
    dtype: torch.dtype = torch.bfloat16
    x_dtype: torch.dtype | None = None
    scale: float = 1.0
    mean: float = 0.0
    small: float = 1.0
    fill: float = 1.0
    trained: tuple[bool, ...] = ALL

    @property
    def autocast(self) -> bool:
        """On CUDA, as the workload runs there."""
        return torch.device(self.device).type == "cuda"

    @property
    def original(self) -> PublishedMlp:
        """The MLP as published, in the case's dtypes."""
        matmul = self.dtype if self.autocast else torch.float32
        return PublishedMlp(Dtypes(matmul, self.dtype), autocast=self.autocast)

    def inputs(self, seed: int) -> Tensors:
        """Drawn on the CPU so that every device gets the same."""
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        channels, width = self.size
        x = draw(self.rows, channels)
        up, up_bias = self.scale * draw(width, channels) / channels**0.5, 0.5 * draw(width)
        down, down_bias = draw(channels, width) / width**0.5, draw(channels)
        grad = self.small * (draw(self.rows, channels) + self.mean)
        x[self.rows // 2, 1] = self.fill
        parameters = (one.to(self.dtype).float() for one in (up, up_bias, down, down_bias))
        drawn = (x.to(self.dtype).to(self.x_dtype or self.dtype), *parameters, grad.to(self.dtype))
        return tuple(one.to(self.device) for one in drawn)

    def _trained(self, inputs: Tensors) -> list[Tensor]:
        return [one for one, trained in zip(inputs, self.trained, strict=False) if trained]

    def outputs(self, inputs: Tensors) -> Tensors:
        """Room for the output and the gradients of what is trained."""
        return tuple(map(torch.empty_like, (inputs[-1], *self._trained(inputs))))

    def compute(self, mlp: Mlp, inputs: Tensors, *, autocast: bool) -> Tensors:
        """Output and gradients, as autograd computes them."""
        pairs = zip(inputs, self.trained, strict=False)
        x, *parameters = (one.detach().requires_grad_(trained) for one, trained in pairs)
        context = (
            torch.autocast(inputs[0].device.type, dtype=self.dtype)
            if autocast
            else contextlib.nullcontext()
        )
        with context:
            out = mlp(x, *parameters)
        found = torch.autograd.grad(out, self._trained((x, *parameters)), inputs[-1])
        return (out.detach(), *found)

    def reference(self, inputs: Tensors, outputs: Tensors) -> None:
        """The original."""
        _copy(self.compute(self.original, inputs, autocast=self.autocast), outputs)

    def candidate(self, inputs: Tensors, outputs: Tensors) -> None:
        """Ours."""
        mlp = EpilogueMlps(self.original, self.fusion)
        _copy(self.compute(mlp, inputs, autocast=self.autocast), outputs)

    def from_the_end(self, inputs: Tensors, outputs: Tensors) -> None:
        """The original with the rows in reverse order: another order of the gradients' sums."""
        x, *parameters, grad = inputs
        turned = (x.flip(0), *parameters, grad.flip(0))
        found = self.compute(self.original, turned, autocast=self.autocast)
        by_rows = 2 if self.trained[0] else 1
        _copy((*(one.flip(0) for one in found[:by_rows]), *found[by_rows:]), outputs)

    def truth(self, inputs: Tensors) -> Tensors:
        """The same in fp64."""
        wide = PublishedMlp(Dtypes(torch.float64, torch.float64), autocast=False)
        return self.compute(wide, tuple(one.double() for one in inputs), autocast=False)

    def nonfinite(self, inputs: Tensors) -> Tensors:
        """Where truth is not finite."""
        return tuple(~torch.isfinite(one) for one in self.truth(inputs))


def _copy(found: Tensors, outputs: Tensors) -> None:
    for room, one in zip(outputs, found, strict=True):
        room.copy_(one)


def op_cases(device: str, fusion: Fusion) -> Sequence[OpCase]:
    """All cases for a device.

    At an infinite pre-activation GELU's slope is what its form makes of ``inf * 0``, and no case.
    """
    cuda = torch.device(device).type == "cuda"
    size, rows = (CUDA_SIZE, CUDA_ROWS) if cuda else (CPU_SIZE, CPU_ROWS)
    make = partial(MlpCase, size=size, device=device, fusion=fusion)
    half, wide = torch.float16, torch.float32
    cases = {
        f"{rows} rows": make(rows),
        "one row": make(1),
        "64 rows": make(64),
        "129 rows of 40 to 72": make(129, size=(40, 72)),
        "fp32 rows": make(rows, x_dtype=wide),
        "float16": make(129, dtype=half),
        "both tails": make(129, scale=20.0),
        "gradients with a mean": make(rows, mean=MEAN),
        "tiny gradients": make(129, small=TINY),
        "frozen parameters": make(129, trained=(True, False, False, False, False)),
        "frozen biases": make(129, trained=(True, True, False, True, False)),
        "frozen weights": make(129, trained=(True, False, True, False, True)),
        "rows without a gradient": make(129, trained=(False, True, True, True, True)),
        "NaN": make(129, fill=math.nan),
        "Inf": make(129, fill=math.inf, trained=(False, False, False, False, True)),
    }
    return tuple(_op_case(name, case) for name, case in cases.items())


def _op_case(name: str, case: MlpCase) -> OpCase:
    channels, width = case.size
    return OpCase(
        name=name,
        inputs=case.inputs,
        outputs=case.outputs,
        reference=case.reference,
        candidate=case.candidate,
        truth=case.truth,
        masks=None if math.isfinite(case.fill) else case.nonfinite,
        elements=2 * case.rows * channels + 2 * channels * width,
        reorderings=(case.from_the_end,),
    )
