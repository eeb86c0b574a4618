"""The op cases of the fused head norm and rotary positions: families, rows, adversarial values.

A case's inputs are the packed projection ``[N, H + 2K, D]``, cosines and sines ``[N, 1, D]`` and,
for a family with norms, the weights of queries and keys ``[D]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from levers.base import OpCase
from levers.kernels.decode_qk_rope import QkNormRope
from levers.kernels.gemv_values import Fill, ForwardCase, Tensors, word

EPS = 1e-6
ROWS = (1, 2, 3, 7, 16, 31, 32, 515)
SIZES = {
    "shipped": (16, 8, 16, True),
    "Qwen3-0.6B": (16, 8, 128, True),
    "Qwen3-4B": (32, 8, 128, True),
    "Llama": (32, 8, 64, False),
}
"""Query heads, KV heads, head dimension, and whether queries and keys are normed."""


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def original(heads: tuple[int, int], tensors: Tensors) -> Tensors:
    """As published: split, a norm each, rotation."""
    packed, cos, sin, *norms = tensors
    q, k, v = torch.split(packed, [heads[0], heads[1], heads[1]], dim=1)
    if norms:
        width = (packed.shape[-1],)
        q, k = (functional.rms_norm(x, width, w, EPS) for x, w in zip((q, k), norms, strict=True))
    return _rotated(q, cos, sin), _rotated(k, cos, sin), v


def fused(heads: tuple[int, int], tensors: Tensors) -> Tensors:
    """Ours."""
    packed, cos, sin, *norms = tensors
    weights = (norms[0], norms[1]) if norms else None
    return QkNormRope()(packed, weights, (cos, sin), heads, EPS)


def _positions(tensors: Tensors) -> None:
    """Cosines and sines of real positions, ragged as in a running batch."""
    _, cos, sin, *_ = tensors
    count, _, dim = cos.shape
    inverse = 1e6 ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.outer((37.0 * torch.arange(count)) % 4093, inverse).repeat(1, 2)
    cos[:, 0].copy_(angles.cos())
    sin[:, 0].copy_(angles.sin())


def _filled(scale: float, shift: float, tensors: Tensors) -> None:
    _positions(tensors)
    tensors[0].mul_(scale).add_(shift)


def _zero_heads(tensors: Tensors) -> None:
    """Every third head is zero: eps alone is left."""
    _positions(tensors)
    tensors[0][:, ::3] = 0.0


def _nonfinite(tensors: Tensors) -> None:
    """A NaN in one query, an infinity in one key and in one value."""
    _positions(tensors)
    packed = tensors[0]
    packed[0, 0, 1], packed[-1, -9, 2], packed[1, -1, 3] = float("nan"), float("inf"), -float("inf")


FILLS: dict[str, Fill] = {
    "large mean": partial(_filled, 1.0, 100.0),
    "far below eps": partial(_filled, 1e-6, 0.0),
    "subnormal": partial(_filled, 1e-39, 0.0),
    "zero heads": _zero_heads,
}


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    on_cuda = torch.device(device).type == "cuda"
    dtypes = (torch.bfloat16, torch.float16) if on_cuda else (torch.float32, torch.bfloat16)
    cases = []
    for name, size in SIZES.items():
        rows = ROWS if on_cuda or name == "shipped" else (1, 7)
        for count in rows:
            case = _case(size, count, dtypes[0], device)
            cases.append(case.named(f"{name}, {count} tokens, {word(dtypes[0])}"))
        other = _case(size, 5, dtypes[1], device)
        cases.append(other.named(f"{name}, 5 tokens, {word(dtypes[1])}"))
    for label, fill in FILLS.items():
        for name in ("Qwen3-0.6B", "Llama"):
            case = _case(SIZES[name], 6, dtypes[0], device, fill)
            cases.append(case.named(f"{label}, {name}, {word(dtypes[0])}"))
    wild = _case(SIZES["Qwen3-0.6B"], 4, dtypes[0], device, _nonfinite)
    return (*cases, wild.named(f"NaN and Inf, {word(dtypes[0])}", masked=True))


def _case(
    size: tuple[int, int, int, bool],
    count: int,
    dtype: torch.dtype,
    device: str,
    fill: Fill = _positions,
) -> ForwardCase:
    h, k, d, normed = size
    norms = ((d,), (d,)) if normed else ()
    return ForwardCase(
        shapes=((count, h + 2 * k, d), (count, 1, d), (count, 1, d), *norms),
        scales=(1.0, 1.0, 1.0, *(None for _ in norms)),
        original=partial(original, (h, k)),
        fused=partial(fused, (h, k)),
        dtype=dtype,
        device=device,
        fill=fill,
    )
