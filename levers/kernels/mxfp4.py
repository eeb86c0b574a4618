"""Weights of 4 bits with a shared scale for every 32: quantiser, storage, plain dequantiser.

Shapes: N rows of activations, E outputs, C inputs (a multiple of 32), P the width of a plane.

The format is MXFP4 of the OCP Microscaling Formats (MX) specification v1.0: elements are E2M1
(sign, two bits of exponent, one of mantissa: 0 0.5 1 1.5 2 3 4 6), and each block of 32 along the
inputs has one E8M0 scale, ``2 ** (code - 127)``. That is 4.25 bits a weight.

The shared exponent. The specification's own conversion takes ``floor(log2(largest)) - 2``, which
puts the block's largest magnitude into [4, 8) and saturates what rounds above 6. Here that exponent
and the next one up are both tried, and the one with the smaller sum of squared errors is kept, the
specification's where they tie. Elements are rounded to nearest, ties to even.

Storage. A word of 32 bits holds 8 elements, one of each of 8 *planes*: with superblocks of 8 P
elements, element ``i P + j`` of a superblock lies in plane ``i`` of its word ``j``. A plane of a
superblock is therefore a run of P inputs below one scale, and all its elements sit in the same bits
of P words. Planes i and i + 4 sit in the two halves of the word, in the bits from which one or two
shifts carry them to those of a pair of bf16 numbers (:data:`SIGN_SHIFT`, :data:`REST_SHIFT`): sign
to bit 15, exponent and mantissa to bits 8 to 6. Read as bf16 that number is the element's value
times ``2 ** -126``, the subnormal 0.5 included, so that no table is needed and nothing is rounded.
"""

from __future__ import annotations

import functools

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

PLANES = 8
SIGN_SHIFT = (0, 3, 1, 2)
REST_SHIFT = (0, 3, 6, -3)
"""Left shifts of a half word that carry sign and rest of planes 0 to 3 (and 4 to 7) in place."""
SIGN_BIT, REST_BIT = 15, 6

PLANE_WIDTHS = (32, 16, 8, 4)
"""Widths of a plane, the best first: a row must be a whole number of superblocks of 8 P."""


def plane_width(inputs: int) -> int:
    """P of a row of so many inputs, a multiple of 32."""
    return next(width for width in PLANE_WIDTHS if inputs % (PLANES * width) == 0)


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


def pack(codes_EC: Tensor, width: int) -> Tensor:
    """Words int32 [E, C / 8] of E2M1 codes, laid out in planes of a width."""
    planes = codes_EC.view(codes_EC.shape[0], -1, PLANES, width).to(torch.int64)
    words = torch.zeros_like(planes[..., 0, :])
    for plane in range(PLANES):
        sign, rest = _places(plane)
        code = planes[..., plane, :]
        words |= ((code >> 3) << sign) | ((code & 7) << rest)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words)
    return words.to(torch.int32).flatten(-2)


def unpack(words_EW: Tensor, width: int) -> Tensor:
    """E2M1 codes uint8 [E, C], the inverse of :func:`pack`."""
    words = words_EW.view(words_EW.shape[0], -1, width)
    planes = []
    for plane in range(PLANES):
        sign, rest = _places(plane)
        planes.append((((words >> sign) & 1) << 3) | ((words >> rest) & 7))
    return torch.stack(planes, dim=-2).flatten(-3).to(torch.uint8)


def _places(plane: int) -> tuple[int, int]:
    """Bits of a word at which a plane's sign and the lowest of its other three lie."""
    half, place = divmod(plane, PLANES // 2)
    base = 16 * half
    return base + SIGN_BIT - SIGN_SHIFT[place], base + REST_BIT - REST_SHIFT[place]


def dequantise_torch(words_EW: Tensor, scales_EG: Tensor, dtype: torch.dtype) -> Tensor:
    """The quantised weights ``[E, C]`` with plain PyTorch: four elements a look-up."""
    outputs, words = words_EW.shape
    width = plane_width(words * PLANES)
    halves = words_EW.view(torch.int16).int() & 0xFFFF
    found = _values_of_halves(dtype).to(words_EW.device).index_select(0, halves.flatten())
    planes = found.view(outputs, -1, width, PLANES).transpose(-1, -2)
    scales = power_of_two(scales_EG.int() - BIAS).to(dtype).unsqueeze(-1)
    return (planes.reshape(outputs, -1, BLOCK) * scales).flatten(-2)


@functools.cache
def _values_of_halves(dtype: torch.dtype) -> Tensor:
    """The four elements of every half word, ``[65536, 4]``, in the order of their planes."""
    signed = torch.tensor((*VALUES, *(-value for value in VALUES)), dtype=dtype)
    halves = torch.arange(1 << 16)
    places = [_places(plane) for plane in range(PLANES // 2)]
    codes = [(((halves >> sign) & 1) << 3) | ((halves >> rest) & 7) for sign, rest in places]
    return signed[torch.stack(codes, dim=-1)]
