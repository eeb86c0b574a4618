"""The cases of the op check of products with MXFP4 weights.

A case's inputs are ``x [N, C]`` and the quantised matrix (words and codes), with a bias and a
residual for the epilogue. Truth is the product in fp64 of these very weights: what quantising costs
is a matter of the model's quality, not of the kernel. The reference unpacks them in another way and
multiplies with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from levers.base import OpCase
from levers.kernels.mxfp4 import BIAS, BLOCK, VALUES, power_of_two
from levers.kernels.mxfp4_layout import unpack, unpack_scales
from levers.kernels.mxfp4_matrix import Mxfp4Weight, quantise

Tensors = tuple[Tensor, ...]
Fill = Callable[[Tensor, Tensor], None]
"""Changes activations and weights (fp32, as drawn) in place into the case's."""

CUDA_SIDES = {"qkv": (6144, 2560), "o": (2560, 4096), "up": (6144, 1024), "down": (1024, 3072)}
CPU_SIDES = {"qkv": (512, 128), "o": (128, 256), "up": (256, 512), "narrow": (48, 96)}
"""Outputs and inputs: of the 4 B model and the 0.6 B one; of the shipped one and a narrow one."""

ROWS = (1, 2, 3, 7, 8, 16, 31, 32, 64, 65, 203)
"""Around the padded 8, 16 and 32; above them two launches, from 65 on the matrix is written out."""


def as_drawn(x: Tensor, weight: Tensor) -> None:
    """Standard normal activations, weights of variance 1 / C."""


def shifted(x: Tensor, weight: Tensor) -> None:
    """A large mean: most of a sum is common to all outputs."""
    x += 64.0
    weight += 0.5


def cancelling(x: Tensor, weight: Tensor) -> None:
    """Halves that cancel but for a thousandth."""
    half = x.shape[1] // 2
    x[:, half:] = -x[:, :half] * 1.001
    weight[:, half:] = weight[:, :half]


def outliers(x: Tensor, weight: Tensor) -> None:
    """Channels a thousand times larger, and weights that set the scale of their blocks."""
    x[:, ::7] *= 1000.0
    weight[:, ::37] *= 30.0


def tiny(x: Tensor, weight: Tensor) -> None:
    """Results that are near the least normal number of bf16."""
    x *= 1e-10
    weight *= 2.0**-80


def coarse(x: Tensor, weight: Tensor) -> None:
    """Every code of the format, the subnormal and the negative zero among them."""
    del x
    signed = torch.tensor((*VALUES, *(-value for value in VALUES)))
    weight.copy_(signed[torch.arange(weight.numel()) % 16].view(weight.shape) * 2.0**-4)


def wild(x: Tensor, weight: Tensor) -> None:
    """A NaN in the first row, an infinity in the last."""
    del weight
    x[0, 1], x[-1, -1] = torch.nan, torch.inf


def rebuilt(inputs: Tensors) -> Mxfp4Weight:
    """The matrix among a case's inputs."""
    x_NC, words, codes, bias_E = inputs[:4]
    return Mxfp4Weight(words, codes, bias_E.shape[0], x_NC.shape[1])


def unpacked(weight: Mxfp4Weight, dtype: torch.dtype) -> Tensor:
    """The quantised weights, element by element from their codes."""
    codes = unpack(weight.words, *weight.shape).int()
    magnitudes = torch.tensor(VALUES, dtype=dtype, device=weight.device)[codes & 7]
    values = torch.where(codes > 7, -magnitudes, magnitudes)
    scales = power_of_two(unpack_scales(weight.codes, *weight.shape).int() - BIAS).to(dtype)
    return values * scales.repeat_interleave(BLOCK, dim=1)


def plain(inputs: Tensors, *, gate: bool) -> Tensor:
    """The operation with PyTorch, in the dtype of the activations; in fp64 it is truth."""
    x_NC, bias_E, residual_NE = inputs[0], inputs[3], inputs[4]
    product_NE = functional.linear(x_NC, unpacked(rebuilt(inputs), x_NC.dtype), bias_E)
    if not gate:
        return product_NE + residual_NE
    gate_NI, up_NI = product_NE.chunk(2, dim=-1)
    return functional.silu(gate_NI) * up_NI


def packed(inputs: Tensors, *, gate: bool) -> Tensor:
    """The same by what the lever stores."""
    if gate:
        return rebuilt(inputs).swiglu(inputs[0])
    return rebuilt(inputs).linear(inputs[0], inputs[3], inputs[4])


@dataclass(frozen=True)
class ProductCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`.

    Attributes:
        added: with a bias and a residual that are not zero.
        gate: the outputs are ``silu(gate) * up`` of the halves, half as many.
    """

    rows: int
    sides: tuple[int, int]
    device: str
    dtype: torch.dtype
    fill: Fill = as_drawn
    added: bool = False
    gate: bool = False

    def inputs(self, seed: int) -> Tensors:
        """``x, words, codes, bias, residual``, drawn on the CPU: every device gets the same."""
        generator = torch.Generator().manual_seed(seed)
        outputs, inputs = self.sides
        x = torch.randn(self.rows, inputs, generator=generator)
        weight = torch.randn(outputs, inputs, generator=generator) * inputs**-0.5
        self.fill(x, weight)
        matrix = quantise(weight.to(self.device))
        bias = torch.randn(outputs, generator=generator) * self.added
        residual = torch.randn(self.rows, outputs, generator=generator) * self.added
        x, bias, residual = (one.to(self.device, self.dtype) for one in (x, bias, residual))
        return x, matrix.words, matrix.codes, bias, residual

    def outputs(self, inputs: Tensors) -> Tensors:
        """Room for the result."""
        width = self.sides[0] // 2 if self.gate else self.sides[0]
        return (inputs[0].new_empty((self.rows, width)),)

    def reference(self, inputs: Tensors, outputs: Tensors) -> None:
        """PyTorch's product of the unpacked weights."""
        outputs[0].copy_(plain(inputs, gate=self.gate))

    def candidate(self, inputs: Tensors, outputs: Tensors) -> None:
        """The product of the packed weights."""
        outputs[0].copy_(packed(inputs, gate=self.gate))

    def truth(self, inputs: Tensors) -> Tensors:
        """The product in fp64."""
        wide = (inputs[0].double(), *inputs[1:3], inputs[3].double(), inputs[4].double())
        return (plain(wide, gate=self.gate),)

    def nonfinite(self, inputs: Tensors) -> Tensors:
        """Where the true result is not finite."""
        return tuple(~torch.isfinite(one) for one in self.truth(inputs))


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device: bf16 on CUDA, fp32 (and bf16) on a CPU."""
    cuda = torch.device(device).type == "cuda"
    sides, dtype = (CUDA_SIDES, torch.bfloat16) if cuda else (CPU_SIDES, torch.float32)
    make = partial(ProductCase, device=device, dtype=dtype)
    first = sides["qkv"]
    cases = {f"{rows} rows": make(rows, first) for rows in ROWS}
    cases |= {f"{name}, 5 rows": make(5, pair) for name, pair in sides.items()}
    cases |= {
        "bias and residual, 4 rows": make(4, first, added=True),
        "bias and residual, 80 rows": make(80, first, added=True),
        "gate and up, 1 row": make(1, sides["up"], gate=True),
        "gate and up, 19 rows": make(19, sides["up"], gate=True),
    }
    for fill in (shifted, cancelling, outliers, tiny, coarse, wild):
        for rows in (3, 33):
            cases[f"{fill.__name__}, {rows} rows"] = make(rows, first, fill=fill)
    if not cuda:
        cases["bf16, 9 rows"] = make(9, first, dtype=torch.bfloat16)
    return tuple(_op_case(name, case) for name, case in cases.items())


def _op_case(name: str, case: ProductCase) -> OpCase:
    outputs, inputs = case.sides
    return OpCase(
        name=name,
        inputs=case.inputs,
        outputs=case.outputs,
        reference=case.reference,
        candidate=case.candidate,
        truth=case.truth,
        masks=case.nonfinite if case.fill is wild else None,
        elements=case.rows * (inputs + outputs) + inputs * outputs,
    )
