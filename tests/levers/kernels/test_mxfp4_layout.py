"""Where the elements of MXFP4 matrices lie, against the rule in words, one by one."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from levers.kernels import mxfp4_layout as layout
from levers.kernels.mxfp4 import BIAS, BLOCK, VALUES


def drawn(outputs: int, inputs: int) -> Tensor:
    generator = torch.Generator().manual_seed(outputs + inputs)
    return torch.randint(16, (outputs, inputs), generator=generator).to(torch.uint8)


@pytest.mark.parametrize("sides", [(16, 128), (48, 256), (33, 96), (5, 32)])
def test_packing_keeps_every_code(sides: tuple[int, int]) -> None:
    codes = drawn(*sides)
    words = layout.pack(codes)
    assert words.shape == (*layout.units_of(*sides), 2, 32, 4)
    assert words.dtype == torch.int32
    assert torch.equal(layout.unpack(words, *sides), codes)
    scales = 1 + drawn(sides[0], sides[1] // BLOCK)
    packed = layout.pack_scales(scales)
    assert packed.shape == (*layout.units_of(*sides), 16, 4)
    assert torch.equal(layout.unpack_scales(packed, *sides), scales)


def test_each_bit_of_two_words_belongs_to_one_register() -> None:
    seen: list[tuple[int, int]] = []
    for register in range(8):
        for bit in range(32):
            if layout.MASK >> bit & 1:
                pairs = [torch.tensor(0) for _ in range(8)]
                pairs[register] = torch.tensor(1 << bit)
                words = [int(word) for word in layout.words_of(pairs)]
                assert sorted(word.bit_count() for word in words) == [0, 1]
                seen += [(i, word.bit_length()) for i, word in enumerate(words) if word]
    assert len(set(seen)) == len(seen) == 64


def test_an_element_lies_where_the_rule_says() -> None:
    """Lane, word and register of an element, and its bits as a bf16 number 2^-126 too small."""
    codes = drawn(48, 384)
    words = layout.pack(codes)
    draw = random.Random(1)
    for _ in range(200):
        e, c = draw.randrange(48), draw.randrange(384)
        tile, h, g = e // 16, e % 16 // 8, e % 8
        unit, j, t, q, i, b, p = (
            c // 128, c // 64 % 2, c // 16 % 4, c // 8 % 2, c // 4 % 2, c // 2 % 2, c % 2
        )  # fmt: skip
        two = words[tile, unit, j, 4 * g + t, 2 * q : 2 * q + 2].long() & layout.WORD_BITS
        register = int(layout.pairs_of(two[0], two[1])[4 * i + 2 * h + b])
        half = register >> (16 * p) & 0xFFFF
        value = torch.tensor(half << 16, dtype=torch.int64).to(torch.int32).view(torch.float32)
        signed = (*VALUES, *(-one for one in VALUES))
        assert float(value.double()) * 2.0**126 == signed[int(codes[e, c])]


def test_a_scale_lies_where_the_rule_says() -> None:
    codes = 1 + drawn(48, 12)
    packed = layout.pack_scales(codes)
    for e in range(48):
        for block in range(12):
            tile, h, g, unit = e // 16, e % 16 // 8, e % 8, block // 4
            j, half = block // 2 % 2, block % 2
            assert packed[tile, unit, 2 * g + half, 2 * j + h] == codes[e, block]


def test_the_scale_of_a_pair_is_two_bf16_numbers() -> None:
    for code in (1, 2, 64, 126, 127, 128):
        word = code * layout.SLOPE + layout.OFFSET
        assert word >> 16 == word & 0xFFFF
        value = torch.tensor(word & 0xFFFF0000, dtype=torch.int64).to(torch.int32)
        assert float(value.view(torch.float32)) == 2.0 ** (code - 1)


def test_plain_dequantising_is_element_times_scale() -> None:
    codes, scales = drawn(33, 160), 90 + drawn(33, 5)
    signed = torch.tensor((*VALUES, *(-value for value in VALUES)), dtype=torch.float64)
    expected = signed[codes.long()] * torch.repeat_interleave(
        2.0 ** (scales.double() - BIAS), 32, 1
    )
    packed = layout.pack(codes), layout.pack_scales(scales)
    assert torch.equal(layout.dequantise_torch(*packed, 33, 160, torch.float64), expected)
