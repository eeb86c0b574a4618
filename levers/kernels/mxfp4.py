"""Weights of 4 bits with a shared scale for every 32: the format and its quantiser.

Shapes: E outputs, C inputs (a multiple of 32). How they are stored: :mod:`.mxfp4_layout`.

The format is MXFP4 of the OCP Microscaling Formats (MX) specification v1.0: elements are E2M1
(sign, two bits of exponent, one of mantissa: 0 0.5 1 1.5 2 3 4 6), and each block of 32 along the
inputs has one E8M0 scale, ``2 ** (code - 127)``. That is 4.25 bits a weight.

The shared exponent. The specification's own conversion takes ``floor(log2(largest)) - 2``, which
puts the block's largest magnitude into [4, 8) and saturates what rounds above 6. Here that exponent
and the next one up are both tried, and the one with the smaller sum of squared errors is kept, the
specification's where they tie. Elements are rounded to nearest, ties to even.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32
"""Elements below one scale (OCP MX v1.0, section 5.2)."""

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of E2M1 by code (OCP MX v1.0, table 5)."""

TIES_DOWN = (0.25, 1.25, 2.5, 5.0)
TIES_UP = (0.75, 1.75, 3.5)
"""Midpoints of the magnitudes, by the side on which the even code lies."""

LARGEST_EXPONENT = 2
"""Of E2M1: 6 is 1.5 x 2^2."""

BIAS = 127
LEAST_CODE = 1
"""Scale 2^-126: as the exponent bits of an fp32 number it is a normal one. Code 0 is not used."""
MOST_CODE = 128
"""Scale 2. The kernels multiply by ``2 ** (code - 1)`` in bf16, which must be finite; a matrix with
weights above 12 is left as it is."""


def refusal(weight_EC: Tensor) -> str:
    """Why a matrix has no MXFP4 form here; empty where it has one."""
    if weight_EC.dim() != 2 or weight_EC.shape[1] % BLOCK or not weight_EC.numel():
        return f"shape {tuple(weight_EC.shape)} is not rows of whole blocks of {BLOCK}"
    largest = float(torch.linalg.vector_norm(weight_EC, float("inf"), dtype=torch.float32))
    if not largest <= VALUES[-1] * 2.0 ** (MOST_CODE - BIAS):
        return f"its largest weight is {largest:g}, above 12 or not finite"
    return ""


def element_codes(weight_EC: Tensor) -> tuple[Tensor, Tensor]:
    """E2M1 codes (uint8 [E, C], sign in bit 3) and E8M0 codes (uint8 [E, C / 32]) of weights."""
    blocks = weight_EC.double().view(weight_EC.shape[0], -1, BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    low = torch.frexp(largest).exponent - 1 - LARGEST_EXPONENT
    low = low.clamp(LEAST_CODE - BIAS, MOST_CODE - BIAS)
    high = (low + 1).clamp(max=MOST_CODE - BIAS)
    better = _squared_error(blocks, high) < _squared_error(blocks, low)
    exponent = torch.where(better, high, low)
    codes = _magnitude_codes(blocks, exponent) | (torch.signbit(blocks).to(torch.uint8) << 3)
    return codes.flatten(-2), (exponent + BIAS).squeeze(-1).to(torch.uint8)


def _magnitude_codes(blocks: Tensor, exponent: Tensor) -> Tensor:
    """The codes 0 to 7 of magnitudes in units of ``2 ** exponent``: nearest, ties to even."""
    scaled = blocks.abs() * power_of_two(-exponent)
    codes = torch.zeros_like(scaled, dtype=torch.uint8)
    for bound in TIES_DOWN:
        codes += scaled > bound
    for bound in TIES_UP:
        codes += scaled >= bound
    return codes


def _squared_error(blocks: Tensor, exponent: Tensor) -> Tensor:
    """Sum of squared errors of each block at a shared exponent; exact in fp64 for bf16 weights."""
    values = torch.tensor(VALUES, dtype=blocks.dtype, device=blocks.device)
    rounded = values[_magnitude_codes(blocks, exponent).int()] * power_of_two(exponent)
    return (rounded - blocks.abs()).square_().sum(-1, keepdim=True)


def power_of_two(exponent: Tensor) -> Tensor:
    """``2 ** exponent`` in fp32, exactly, for integers from -126 to 127: by its bits."""
    return ((exponent.to(torch.int32) + BIAS) << 23).view(torch.float32)
