"""Seeded packed batches and the flow-matching objective on them.

Shapes: B samples, N packed tokens, L latent channels, M packed condition tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.workloads.flow.config import SlatConfig
from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.model import SlatFlow
from experiments.workloads.flow.rope import phases

GRID = 32
"""Voxels along an axis of the latent grid at 512."""

SIGMA_MIN = 1e-5
"""Noise left at t = 0 (upstream's flow-matching trainer)."""

UNCONDITIONED = 0.1
"""Share of the samples whose condition is replaced by zeros (upstream's p_uncond)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One packed batch on its device."""

    clean_NL: Tensor
    noise_NL: Tensor
    t_B: Tensor
    cond: Tensor
    layout: PackedLayout
    cond_layout: PackedLayout
    phases_NP: Tensor

    def noised(self) -> Tensor:
        """``x_t = (1 - t) x_0 + (s + (1 - s) t) noise``, ``[N, L]``."""
        t_N1 = self.t_B[self.layout.batch_map, None]
        return (1 - t_N1) * self.clean_NL + (SIGMA_MIN + (1 - SIGMA_MIN) * t_N1) * self.noise_NL

    def velocity(self) -> Tensor:
        """The target ``(1 - s) noise - x_0``, ``[N, L]``."""
        return (1 - SIGMA_MIN) * self.noise_NL - self.clean_NL


@dataclass(frozen=True, slots=True)
class _Sample:
    clean: Tensor
    noise: Tensor
    t: Tensor
    cond: Tensor
    coords: Tensor


def _draw(config: SlatConfig, tokens: int, generator: torch.Generator) -> _Sample:
    """One asset: distinct voxels in scan order; a latent that its place and condition foretell."""
    voxels = torch.randperm(GRID**3, generator=generator)[:tokens].sort().values
    coords = torch.stack([voxels // GRID**2, voxels // GRID % GRID, voxels % GRID], dim=1)
    cond = torch.randn(config.cond_tokens, config.cond_channels, generator=generator)
    cond = F.layer_norm(cond, cond.shape[-1:])
    if torch.rand((), generator=generator) < UNCONDITIONED:
        cond = torch.zeros_like(cond)
    direction = torch.randn(3, config.latent, generator=generator)
    own = torch.randn(config.latent, generator=generator)
    clean = torch.sin(_phase(coords, direction)) + 0.5 * own
    return _Sample(
        clean=clean,
        noise=torch.randn(tokens, config.latent, generator=generator),
        t=torch.rand((), generator=generator),
        cond=cond,
        coords=coords,
    )


def _phase(coords: Tensor, direction: Tensor) -> Tensor:
    """``coords / GRID x pi @ direction``, term by term.

    A matrix product on the CPU may sum in another order in another process (its library chooses
    by alignment), and the inputs of all processes must be equal to the bit.
    """
    scaled = coords / GRID * torch.pi
    x, y, z = (scaled[:, axis, None] * direction[axis] for axis in range(3))
    return x + y + z


def make_batch(
    config: SlatConfig,
    seed: int,
    device: torch.device | str,
    *,
    dtype: torch.dtype = torch.float32,
    order: Sequence[int] | None = None,
) -> Batch:
    """Draw a batch on the CPU (the same on every device) and pack it.

    Args:
        config: shapes and lengths.
        seed: of the content; the lengths come from ``config``.
        device: where the tensors go.
        dtype: fp32, or fp64 for truth.
        order: a permutation of the samples: the same work packed in another order.
    """
    generator = torch.Generator().manual_seed(seed)
    samples = [_draw(config, tokens, generator) for tokens in config.lengths]
    samples = samples if order is None else [samples[i] for i in order]

    def pack(parts: Iterable[Tensor]) -> Tensor:
        return torch.cat(list(parts)).to(device=device, dtype=dtype)

    coords = torch.cat([s.coords for s in samples]).to(device)
    cond = pack(s.cond for s in samples)
    return Batch(
        clean_NL=pack(s.clean for s in samples),
        noise_NL=pack(s.noise for s in samples),
        t_B=pack(s.t[None] for s in samples),
        cond=cond.requires_grad_(config.frozen > 0),
        layout=PackedLayout.of([len(s.coords) for s in samples], device),
        cond_layout=PackedLayout.of([config.cond_tokens] * len(samples), device),
        phases_NP=phases(coords, config.head_dim, dtype),
    )


def flow_loss(
    model: SlatFlow, batch: Batch, forward: Callable[..., Tensor] | None = None
) -> Tensor:
    """Mean squared error of the velocity over all elements: long samples weigh more.

    ``forward`` is what is called for the model, where it is wrapped.
    """
    with model.precision.context(batch.t_B.device.type):
        out_NL = (forward or model)(
            batch.noised(),
            batch.t_B,
            batch.layout,
            batch.phases_NP,
            batch.cond,
            batch.cond_layout,
        )
        return F.mse_loss(out_NL.to(model.precision.norm), batch.velocity())


def digest_tensors(tensors: Iterable[Tensor]) -> str:
    """SHA-256 (16 hex digits) of dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        raw = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        sha.update(raw.numpy().tobytes())
    return sha.hexdigest()[:16]


def batch_digest(batch: Batch) -> str:
    """Digest of everything in the batch that the step reads."""
    layout = (batch.layout.cu_seqlens, batch.cond_layout.cu_seqlens)
    return digest_tensors((batch.clean_NL, batch.noise_NL, batch.t_B, batch.cond, *layout))
