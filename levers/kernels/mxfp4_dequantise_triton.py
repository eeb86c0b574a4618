"""Device code that writes MXFP4 weights out in bf16, for products with many rows.

Bytes for E x C: 0.53 EC read and 2 EC written. For 19,456 x 2,560 that is 126 MB, which at 4.3 TB/s
is 29 us, beside 260 us of a product with 2,048 rows at 790 TFLOP/s.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from levers.kernels.mxfp4_decode_triton import MASK, left, spare_of
from levers.kernels.mxfp4_layout import TILE_OUTPUTS, UNIT_INPUTS
from levers.kernels.mxfp4_matrix import Mxfp4Weight

BLOCK_PAIRS = 256
"""Pairs of words of one program: 4096 elements, 32 a thread over 4 warps."""
UNIT_PAIRS = tl.constexpr(128)
"""Pairs of words in a unit of 16 outputs by 128 inputs."""


@triton.jit
def _elements(pair):  # type: ignore[no-untyped-def]
    """Both elements of registers in fp32, times ``2 ** -126``, ``[..., 2]``."""
    low = (pair << 16).to(tl.float32, bitcast=True)
    return tl.join(low, (pair & 0xFFFF0000).to(tl.float32, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def _eight(first, second, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight inputs of a row from its registers of two words ``[..., b]``: ``[BLOCK, i b p]``."""
    values = tl.join(first, second)
    return tl.reshape(tl.permute(values, (0, 3, 2, 1)), (BLOCK, 8))


@triton.jit(do_not_specialize=("units", "pairs"))  # type: ignore[untyped-decorator]
def _dequantise(  # type: ignore[no-untyped-def]
    words_ptr, codes_ptr, out_ptr, units, pairs, outputs, inputs, BLOCK: tl.constexpr
):
    """Pair z of words lies in unit ``z // 128``; there ``z % 128`` is (j, g, t, q)."""
    z = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    unit, inside = z // UNIT_PAIRS, z % UNIT_PAIRS
    q, lane, j = inside % 2, inside // 2 % 32, inside // 64
    first = tl.load(words_ptr + 2 * z, mask=z < pairs, other=0).to(tl.uint32, bitcast=True)
    second = tl.load(words_ptr + 2 * z + 1, mask=z < pairs, other=0).to(tl.uint32, bitcast=True)
    spare = spare_of(first, second)
    column = unit % units * 128 + j * 64 + lane % 4 * 16 + q * 8
    for h in tl.static_range(2):
        if h == 0:
            one = tl.join(_elements(first & MASK), _elements((first << 4) & MASK))
            two = tl.join(_elements(second & MASK), _elements((second << 4) & MASK))
        else:
            one = tl.join(_elements(left(first, 26) & MASK), _elements(left(spare, 6) & MASK))
            two = tl.join(_elements(left(second, 26) & MASK), _elements(left(spare, 28) & MASK))
        code = tl.load(codes_ptr + (unit * 16 + lane // 2) * 4 + j * 2 + h, mask=z < pairs, other=0)
        scale = ((code.to(tl.int32) + 126) << 23).to(tl.float32, bitcast=True)
        row = unit // units * 16 + 8 * h + lane // 4
        keep = (z < pairs) & (row < outputs) & (column < inputs)
        place = (row * inputs + column)[:, None] + tl.arange(0, 8)[None, :]
        values = _eight(one, two, BLOCK) * scale[:, None]
        tl.store(out_ptr + place, values.to(out_ptr.dtype.element_ty), mask=keep[:, None])


def dequantise_triton(weight: Mxfp4Weight, dtype: torch.dtype) -> Tensor:
    """One launch: ``[E, C]`` in a dtype."""
    out_EC = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    tiles, units = weight.words.shape[:2]
    pairs = tiles * units * TILE_OUTPUTS * UNIT_INPUTS // 16
    _dequantise[(triton.cdiv(pairs, BLOCK_PAIRS),)](
        weight.words,
        weight.codes,
        out_EC,
        units,
        pairs,
        weight.outputs,
        weight.inputs,
        BLOCK=BLOCK_PAIRS,
        num_warps=4,
    )
    return out_EC
