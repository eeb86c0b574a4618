"""The Linears of the blocks with products of 8-bit floats, forward and backward.

What changes: the callable of the site of the Linears. Inputs, weights and gradients are quantised
to 8 bits with one scale each, taken from the operand itself just before its use, and all three
products (output, gradient of the input, gradient of the weight) multiply 8-bit values with fp32
sums. Weights are kept and updated in fp32 as before. The setting names the format of the gradients:
``e4m3`` (3 bits of mantissa, as inputs and weights) or ``e5m2`` (2 bits, and a wider range).

Mechanism: the tensor cores multiply 8-bit floats at twice the rate of bf16, and what is kept for
the backward takes one byte an element instead of two. The price is quantising: each operand is read
twice and written twice (straight and transposed, because both operands of such a product must lie
along the summed dimension), which moves 6 bytes an element of bf16.

Numerics: rounding to E4M3 has a relative error of at most 2^-4 (root mean square 0.026 over a
uniform mantissa), to E5M2 2^-3 (0.053), so a product is off by 0.037 or 0.059 of its norm, where
bf16 is off by 0.002. That is no lossless change; the lever claims ``tolerated``, and the curves of
the loss decide whether a training may use it. Sums that cancel lose more: with E4M3 gradients 3 of
the 52 parameters of the small ``slat_flow`` have gradients 0.080 to 0.089 from fp64, the others
less. The tolerance of gradients is 0.1, the most that a lever may declare.

Where it does not help: Linears with a side below 1024 on CUDA, which stay as they are; the
embeddings and the output, which do not pass through the site; devices below compute capability 8.9;
and, in speed, a CPU, where the 8-bit values are multiplied in fp32: the numerics can be judged
there, and nothing is won. It cannot act on an MLP whose first Linear is fused with its activation.

Sources: Micikevicius et al. 2022, FP8 Formats for Deep Learning; NVIDIA H200 datasheet (dense rates
of 989 TFLOP/s in bf16 and 1,979 in FP8); PyTorch ``torch._scaled_mm``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OFF, OpCase, Settings, Site
from levers.policy import ParityClass, Tolerance
from levers.step_lever import StepLever

SITE = "flow.linear"

TOLERANCE = Tolerance(
    relative_error=0.08,
    reason=(
        "one product of E4M3 operands is off by 0.037 of its norm and one with E5M2 gradients by "
        "0.059, from the formats' 3 and 2 bits of mantissa; the rest is for operands whose largest "
        "value is far above the others; a parameter's gradient collects the errors of all products "
        "behind it, and where it is a sum that cancels the same error is a larger share of it"
    ),
    gradient_error=0.1,
)


class Fp8LinearLever(StepLever):
    """Swaps the callable of the Linears for the one with 8-bit products."""

    name = "fp8_linear"
    summary = "8-bit products in the Linears of the blocks, forward and backward"
    settings = Settings((OFF, "e4m3", "e5m2"))
    env = "LEVER_FP8_LINEAR"
    touches = (SITE,)
    claims = ParityClass.TOLERATED
    tolerance = TOLERANCE

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The 8-bit product; small Linears go on to the callable that was there.

        The capability of the device is seen at the first call.
        """
        from levers.kernels.fp8_linear import GRADIENTS, Fp8Product

        return Fp8Product(site.launch, GRADIENTS[setting])

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """The model's Linears, one row, fp32 inputs, outliers, large means, tiny gradients, NaN."""
        from levers.kernels.fp8_linear_cases import op_cases

        return op_cases(setting, device)


LEVER = Fp8LinearLever()
