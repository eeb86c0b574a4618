"""The op cases of the fused residual add and RMS norm: rows, widths and adversarial values.

A case's inputs are the stream, the addend ``[N, C]`` and the weight ``[C]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch.nn import functional

from levers.base import OpCase
from levers.kernels.add_norm import AddNorm
from levers.kernels.gemv_values import Fill, ForwardCase, Tensors, word

EPS = 1e-6
ROWS = (1, 2, 3, 7, 16, 31, 32, 515)
"""Steps of every size, and a prompt."""
WIDTHS = {"cpu": (128, 1024), "cuda": (128, 1024, 2560)}
"""Hidden sizes of the shipped model, of Qwen3-0.6B and of Qwen3-4B."""


def original(tensors: Tensors) -> Tensors:
    """The sum, rounded, then PyTorch's RMS norm."""
    x_NC, delta_NC, weight_C = tensors
    sum_NC = x_NC + delta_NC
    return sum_NC, functional.rms_norm(sum_NC, (sum_NC.shape[-1],), weight_C, EPS)


def fused(tensors: Tensors) -> Tensors:
    """Ours."""
    x_NC, delta_NC, weight_C = tensors
    return AddNorm()(x_NC, delta_NC, weight_C, EPS)


def _large_mean(tensors: Tensors) -> None:
    tensors[0].add_(300.0)


def _cancelling(tensors: Tensors) -> None:
    """The addend takes nearly all of the stream away; in the second row all of it."""
    x_NC, delta_NC = tensors[:2]
    x_NC.mul_(64.0)
    delta_NC.mul_(0.5).sub_(x_NC)
    delta_NC[1:2].copy_(-x_NC[1:2])


def _tiny(tensors: Tensors) -> None:
    """The mean of the squares is far below eps."""
    for one in tensors[:2]:
        one.mul_(1e-6)


def _subnormal(tensors: Tensors) -> None:
    """Below the smallest normal number (1.2e-38) of bf16 and fp32."""
    for one in tensors[:2]:
        one.mul_(1e-39)


def _outlier(tensors: Tensors) -> None:
    """One channel is ten thousand times the others, as in trained models."""
    tensors[0][:, 5] = 1e4


def nonfinite(tensors: Tensors) -> None:
    """A NaN in the first row of the stream and an infinity in the last row of the addend."""
    tensors[0][0, 3], tensors[1][-1, 7] = float("nan"), float("inf")


FILLS: dict[str, Fill] = {
    "large mean": _large_mean,
    "cancelling": _cancelling,
    "far below eps": _tiny,
    "subnormal": _subnormal,
    "outlier": _outlier,
}


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    on_cuda = torch.device(device).type == "cuda"
    dtypes = (torch.bfloat16, torch.float16) if on_cuda else (torch.float32, torch.bfloat16)
    make = partial(
        ForwardCase, scales=(1.0, 0.5, None), original=original, fused=fused, device=device
    )
    cases = []
    for channels in WIDTHS["cuda" if on_cuda else "cpu"]:
        for rows in ROWS:
            case = make(shapes=_shapes(rows, channels), dtype=dtypes[0])
            cases.append(case.named(f"{rows} x {channels}, {word(dtypes[0])}"))
        other = make(shapes=_shapes(7, channels), dtype=dtypes[1])
        cases.append(other.named(f"7 x {channels}, {word(dtypes[1])}"))
    for label, fill in FILLS.items():
        case = make(shapes=_shapes(6, 1024), dtype=dtypes[0], fill=fill)
        cases.append(case.named(f"{label}, {word(dtypes[0])}"))
    wild = make(shapes=_shapes(5, 1024), dtype=dtypes[0], fill=nonfinite)
    return (*cases, wild.named(f"NaN and Inf, {word(dtypes[0])}", masked=True))


def _shapes(rows: int, channels: int) -> tuple[tuple[int, ...], ...]:
    return (rows, channels), (rows, channels), (channels,)
