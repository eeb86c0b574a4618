"""How MXFP4 weights lie in memory: in the order in which a tensor core's operand wants them.

Shapes: E outputs, C inputs. A *unit* is 16 outputs by 128 inputs, a warp's work in 8 products
of 16 x 8 x 16 (PTX ``mma.m16n8k16``). Matrices are padded with zeros to whole units: T rows of
units, U units a row.

Lane ``4 g + t`` of a warp holds the operand's rows g and g + 8. Of the order of the inputs nothing
depends but the activations', so it is chosen here. With bits j, q, i, b and p, input
``64 j + 16 t + 8 q + 4 i + 2 b + p`` of output ``8 h + g`` is half p of operand register (h, b) of
the product (j, q, i). So a lane has 16 consecutive inputs, which lie below one scale, in each half
of the unit, and four lanes have 64: their activations are 128 consecutive bytes. The 8 words of a
lane, (j, q, i), hold 8 elements each:

- ``words[T, U, j, lane, (q, i)]``: a warp reads 512 consecutive bytes, each lane 16;
- ``codes[T, U, g, t // 2, j, h]``: the E8M0 codes of a lane, four bytes that two lanes share.

Inside the words. Read as bf16, a number with E2M1's sign in bit 15 and its other three bits in 8 to
6 is the element times ``2 ** -126``, the subnormal 0.5 included: no table, no rounding. A register
holds two of them, mask :data:`MASK`. A word has the 32 bits of four registers, but its bits cannot
be divided into four copies of that mask by rotation. Those of two words (i = 0, 1) can: three
registers of each word are a rotation of it, and what is left of both, put into one word, is a
rotation of the last two. That is 8 shifts and 9 masks for 16 elements (:func:`pairs_of`).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from levers.kernels.mxfp4 import BIAS, BLOCK, VALUES, power_of_two

TILE_OUTPUTS, UNIT_INPUTS = 16, 128
LANES, LANE_WORDS = 32, 8

MASK = 0x81C081C0
"""Bits of a register: sign, exponent and mantissa of two bf16 numbers."""
SPARE_MASK = 0x06030603
"""Bits of the first word that none of its three registers takes; two lower, those of the second."""
SPARE_SHIFT = 2
WORD_BITS = 0xFFFFFFFF

SLOPE, OFFSET = 0x00800080, 0x3F003F00
"""``code * SLOPE + OFFSET``: ``2 ** (code - 1)`` in both halves of a word, in bf16. That is the
scale times the ``2 ** 126`` by which a register's halves are too small."""


def units_of(outputs: int, inputs: int) -> tuple[int, int]:
    """Rows of units and units in a row of a matrix."""
    return -(-outputs // TILE_OUTPUTS), -(-inputs // UNIT_INPUTS)


def left(words: Tensor, bits: int) -> Tensor:
    """Words (int64, 32 bits each) rotated to the left."""
    return ((words << bits) | (words >> (32 - bits))) & WORD_BITS


def pairs_of(first: Tensor, second: Tensor) -> list[Tensor]:
    """The registers (i, h, b) of two words (int64, 32 bits each)."""
    spare = (first & SPARE_MASK) | ((second << SPARE_SHIFT) & ~SPARE_MASK & WORD_BITS)
    found = []
    for word, turn in ((first, 6), (second, 28)):
        registers = (word, left(word, 4), left(word, 26), left(spare, turn))
        found += [one & MASK for one in registers]
    return found


def words_of(pairs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The inverse of :func:`pairs_of`."""
    spare = left(pairs[3], 26) | left(pairs[7], 4)
    first, second = (
        four[0] | left(four[1], 28) | left(four[2], 6) for four in (pairs[:4], pairs[4:])
    )
    return first | (spare & SPARE_MASK), second | ((spare & ~SPARE_MASK) >> SPARE_SHIFT)


def pack(codes_EC: Tensor) -> Tensor:
    """Words int32 ``[T, U, 2, 32, 4]`` of E2M1 codes (uint8, sign in bit 3)."""
    rows, units = units_of(*codes_EC.shape)
    full = codes_EC.new_zeros((rows * TILE_OUTPUTS, units * UNIT_INPUTS))
    full[: codes_EC.shape[0], : codes_EC.shape[1]] = codes_EC
    # T h g U j t q i b p -> i h b p | T U j g t q
    split = full.view(rows, 2, 8, units, 2, 4, 2, 2, 2, 2)
    codes = split.permute(7, 1, 8, 9, 0, 3, 4, 2, 5, 6).to(torch.int64)
    values = ((codes >> 3) << 15) | ((codes & 7) << 6)
    pairs = values[:, :, :, 0] | (values[:, :, :, 1] << 16)
    first, second = words_of([pairs[i, h, b] for i in (0, 1) for h in (0, 1) for b in (0, 1)])
    words = torch.stack((first, second), dim=-1).reshape(rows, units, 2, LANES, 4)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def unpack(words_TUJLQ: Tensor, outputs: int, inputs: int) -> Tensor:
    """E2M1 codes uint8 ``[E, C]``, the inverse of :func:`pack`."""
    pairs = _pairs(words_TUJLQ)
    halves = torch.stack((pairs & 0xFFFF, pairs >> 16), dim=3)
    codes = ((halves >> 15) << 3) | ((halves >> 6) & 7)
    return _in_order(codes.to(torch.uint8), outputs, inputs)


def _pairs(words_TUJLQ: Tensor) -> Tensor:
    """Registers ``[i, h, b, T, U, j, g, t, q]``, int64."""
    rows, units = words_TUJLQ.shape[:2]
    words = words_TUJLQ.to(torch.int64) & WORD_BITS
    first, second = words.view(rows, units, 2, 8, 4, 2, 2).unbind(-1)
    return torch.stack(pairs_of(first, second)).view(2, 2, 2, *first.shape)


def _in_order(found: Tensor, outputs: int, inputs: int) -> Tensor:
    """``[i, h, b, p, T, U, j, g, t, q]`` as ``[E, C]``, without the padding."""
    rows, units = found.shape[4:6]
    matrix = found.permute(4, 1, 7, 5, 6, 8, 9, 0, 2, 3)
    matrix = matrix.reshape(rows * TILE_OUTPUTS, units * UNIT_INPUTS)
    return matrix[:outputs, :inputs].contiguous()


def pack_scales(codes_EG: Tensor) -> Tensor:
    """E8M0 codes uint8 ``[E, C / 32]`` as ``[T, U, 16, 4]``; 1 where the matrix is padded."""
    outputs, groups = codes_EG.shape
    rows, units = units_of(outputs, groups * BLOCK)
    full = codes_EG.new_ones((rows * TILE_OUTPUTS, units * 4))
    full[:outputs, :groups] = codes_EG
    # T h g U j t
    split = full.view(rows, 2, 8, units, 2, 2)
    return split.permute(0, 3, 2, 5, 4, 1).reshape(rows, units, LANES // 2, 4)


def unpack_scales(codes_TUSB: Tensor, outputs: int, inputs: int) -> Tensor:
    """E8M0 codes uint8 ``[E, C / 32]``, the inverse of :func:`pack_scales`."""
    rows, units = codes_TUSB.shape[:2]
    split = codes_TUSB.view(rows, units, 8, 2, 2, 2).permute(0, 5, 2, 1, 4, 3)
    return split.reshape(rows * TILE_OUTPUTS, units * 4)[:outputs, : inputs // BLOCK].contiguous()


def dequantise_torch(
    words_TUJLQ: Tensor, codes_TUSB: Tensor, outputs: int, inputs: int, dtype: torch.dtype
) -> Tensor:
    """The quantised weights ``[E, C]`` with plain PyTorch: two elements a look-up."""
    pairs = _pairs(words_TUJLQ)
    both = (
        ((pairs >> 6) & 7) | ((pairs >> 12) & 8) | ((pairs >> 18) & 0x70) | ((pairs >> 24) & 0x80)
    )
    table = _values_of_pairs(dtype).to(pairs.device)
    found = table.index_select(0, both.flatten()).view(*pairs.shape, 2).movedim(-1, 3)
    matrix = _in_order(found, outputs, inputs)
    exponents = unpack_scales(codes_TUSB, outputs, inputs).int() - BIAS
    scales = power_of_two(exponents).to(dtype).unsqueeze(-1)
    return (matrix.view(outputs, -1, BLOCK) * scales).flatten(-2)


@functools.cache
def _values_of_pairs(dtype: torch.dtype) -> Tensor:
    """Both elements of every pair of codes, ``[256, 2]``, the low code's first."""
    signed = torch.tensor((*VALUES, *(-value for value in VALUES)), dtype=dtype)
    codes = torch.arange(256)
    return signed[torch.stack((codes & 15, codes >> 4), dim=-1)]
