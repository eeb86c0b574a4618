"""Rotary positions in three dimensions: a head's channels are turned by voxel coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10000.0
"""Longest wavelength over 2 pi, as in the original RoPE (Su et al. 2021)."""


def phases(coords_N3: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Unit complex numbers, ``[N, head_dim / 2]``, for the pairs of a head's channels.

    Each axis has ``head_dim // 2 // 3`` frequencies ``BASE ** (-j / count)``; the pairs that are
    left over (one of 64 at head dim 128) are not turned.

    Args:
        coords_N3: integer voxel coordinates.
        head_dim: even.
        dtype: fp32 gives complex64, fp64 complex128.
    """
    pairs = head_dim // 2
    count = pairs // 3
    step = torch.arange(count, dtype=torch.float64, device=coords_N3.device)
    frequencies = BASE ** (-step / count)
    angles = (coords_N3.double()[:, :, None] * frequencies).flatten(1)
    unmoved = angles.new_zeros((angles.shape[0], pairs - angles.shape[1]))
    turned = torch.cat([angles, unmoved], dim=1)
    return torch.polar(torch.ones_like(turned), turned).to(
        torch.complex128 if dtype == torch.float64 else torch.complex64
    )


def rotate(x_NHD: Tensor, phases_NP: Tensor) -> Tensor:
    """Turn adjacent pairs of channels; returns the real dtype that goes with the phases.

    The phases are complex as upstream's, or their cosines and sines, ``[N, P, 2]``, for a compiler
    that writes no code for complex numbers.
    """
    if not phases_NP.is_complex():
        return _rotate_pairs(x_NHD, phases_NP)
    pairs = torch.unflatten(x_NHD.to(phases_NP.real.dtype), -1, (-1, 2)).contiguous()
    turned = torch.view_as_complex(pairs) * phases_NP[:, None, :]
    return torch.view_as_real(turned).flatten(-2)


def _rotate_pairs(x_NHD: Tensor, waves_NP2: Tensor) -> Tensor:
    """The same product in real numbers."""
    cos, sin = waves_NP2[:, None].unbind(-1)
    first, second = torch.unflatten(x_NHD.to(waves_NP2.dtype), -1, (-1, 2)).unbind(-1)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.flatten(-2)
