"""Exact checksums of a model's weights or gradients, on the device where they lie.

A SHA-256 of 1.3 B weights would copy 5 GB to the host at each sample; two wrapping integer sums of
the bits read them once on the device. They are exact, so that equal tensors have equal sums in
every process, and a sum that weighs each place differs where two values changed places.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PERIOD = 8191
"""Weights of the places run from 1 to this prime."""

CHUNK = 1 << 22
"""Elements at a time: their 64-bit form takes 32 MiB."""

BITS: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type of the same size as an element."""


def checksums(model: Any, *, gradients: bool = False) -> dict[str, str]:
    """Hexadecimal checksums by parameter name; gradients that are not there are left out."""
    named = [
        (name, p.grad if gradients else p.detach())
        for name, p in model.named_parameters()
        if not gradients or p.grad is not None
    ]
    if not named:
        return {}
    sums = torch.stack([checksum(tensor) for _, tensor in named]).cpu().tolist()
    mask = 2**64 - 1
    return {
        name: f"{plain & mask:016x}{placed & mask:016x}"
        for (name, _), (plain, placed) in zip(named, sums, strict=True)
    }


def checksum(tensor: Tensor) -> Tensor:
    """``[2]`` int64: the sum of the elements' bits, and the sum in which each place counts."""
    bits = tensor.detach().contiguous().reshape(-1).view(BITS[tensor.element_size()])
    sums = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), CHUNK):
        part = bits[start : start + CHUNK].to(torch.int64)
        place = torch.arange(start, start + part.numel(), device=tensor.device) % PERIOD + 1
        sums += torch.stack([part.sum(), (part * place).sum()])
    return sums
