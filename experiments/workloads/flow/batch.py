"""Seeded samples, the micro-batches that they are packed into, and the objective on them.

Shapes: B samples, N packed tokens, L latent channels, M packed condition tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.model import FlowModel
from experiments.workloads.flow.rope import phases

SIGMA_MIN = 1e-5
"""Noise left at t = 0 (upstream's flow-matching trainer)."""

UNCONDITIONED = 0.1
"""Share of the samples whose condition is replaced by zeros (upstream's p_uncond)."""

LOGIT_MEAN = 1.0
"""Of the logit of a dense sample's time, which is normal with unit variance (upstream's schedule
of the sparse-structure flow); a packed sample's time is uniform."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One asset on the CPU: latent, noise, time, condition, voxel coordinates."""

    clean: Tensor
    noise: Tensor
    t: Tensor
    cond: Tensor
    coords: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """One packed micro-batch on its device.

    Attributes:
        share: its part of the step's tokens.
        drawn: of each of its samples the position among the samples of the step as they were drawn;
            a lever may pack them in another order.
    """

    clean_NL: Tensor
    noise_NL: Tensor
    t_B: Tensor
    cond: Tensor
    layout: PackedLayout
    cond_layout: PackedLayout
    phases_NP: Tensor
    drawn: tuple[int, ...]
    share: float = 1.0

    def noised(self) -> Tensor:
        """``x_t = (1 - t) x_0 + (s + (1 - s) t) noise``, ``[N, L]``."""
        t_N1 = self.t_B[self.layout.batch_map, None]
        return (1 - t_N1) * self.clean_NL + (SIGMA_MIN + (1 - SIGMA_MIN) * t_N1) * self.noise_NL

    def velocity(self) -> Tensor:
        """The target ``(1 - s) noise - x_0``, ``[N, L]``."""
        return (1 - SIGMA_MIN) * self.noise_NL - self.clean_NL


def _draw(config: FlowConfig, tokens: int, generator: torch.Generator, conditioned: bool) -> Sample:
    """One asset: distinct voxels in scan order; a latent that its place and condition foretell."""
    coords = _coords(config, tokens, generator)
    cond = torch.randn(config.cond_tokens, config.cond_channels, generator=generator)
    cond = F.layer_norm(cond, cond.shape[-1:])
    dropped = torch.rand((), generator=generator) < UNCONDITIONED
    if dropped and not conditioned:
        cond = torch.zeros_like(cond)
    direction = torch.randn(3, config.latent, generator=generator)
    own = torch.randn(config.latent, generator=generator)
    clean = torch.sin(_phase(coords, config.grid, direction)) + 0.5 * own
    return Sample(
        clean=clean,
        noise=torch.randn(tokens, config.latent, generator=generator),
        t=_time(config, generator),
        cond=cond,
        coords=coords,
    )


def _coords(config: FlowConfig, tokens: int, generator: torch.Generator) -> Tensor:
    """All voxels of the grid for a dense sample, else that many distinct ones."""
    side = config.grid
    if config.dense:
        voxels = torch.arange(side**3)
    else:
        voxels = torch.randperm(side**3, generator=generator)[:tokens].sort().values
    return torch.stack([voxels // side**2, voxels // side % side, voxels % side], dim=1)


def _time(config: FlowConfig, generator: torch.Generator) -> Tensor:
    if config.dense:
        return torch.sigmoid(LOGIT_MEAN + torch.randn((), generator=generator))
    return torch.rand((), generator=generator)


def _phase(coords: Tensor, grid: int, direction: Tensor) -> Tensor:
    """``coords / grid x pi @ direction``, term by term.

    A matrix product on the CPU may sum in another order in another process (its library chooses
    by alignment), and the inputs of all processes must be equal to the bit.
    """
    scaled = coords / grid * torch.pi
    x, y, z = (scaled[:, axis, None] * direction[axis] for axis in range(3))
    return x + y + z


def draw_samples(
    config: FlowConfig,
    seed: int,
    *,
    order: Sequence[int] | None = None,
    conditioned: bool = False,
) -> tuple[Sample, ...]:
    """The samples of one step, drawn on the CPU: the same on every device.

    Args:
        config: shapes and lengths.
        seed: of the content; the lengths come from ``config``.
        order: a permutation of the samples: the same work packed in another order.
        conditioned: leave every sample its condition. A few samples that have all lost theirs leave
            the cross attention's parameters without a gradient, and their errors without a scale.
    """
    generator = torch.Generator().manual_seed(seed)
    with _one_thread():
        samples = tuple(_draw(config, tokens, generator, conditioned) for tokens in config.lengths)
    return samples if order is None else tuple(samples[i] for i in order)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Draw alone: inputs must be equal to the bit, however many threads a process has.

    How a loop is cut among threads may decide which of its elements the vector code takes.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def pack(
    config: FlowConfig,
    samples: Sequence[Sample],
    device: torch.device | str,
    *,
    dtype: torch.dtype = torch.float32,
    share: float = 1.0,
    drawn: Sequence[int] | None = None,
) -> Batch:
    """Put samples behind each other on the device, in fp32, or in fp64 for truth.

    ``drawn`` are their positions among the step's samples; by default they are these, in order.
    """

    def joined(parts: Iterable[Tensor]) -> Tensor:
        return torch.cat(list(parts)).to(device=device, dtype=dtype)

    coords = torch.cat([s.coords for s in samples]).to(device)
    cond, dense = joined(s.cond for s in samples), config.dense
    return Batch(
        clean_NL=joined(s.clean for s in samples),
        noise_NL=joined(s.noise for s in samples),
        t_B=joined(s.t[None] for s in samples),
        cond=cond.requires_grad_(config.frozen > 0),
        layout=PackedLayout.of([len(s.coords) for s in samples], device, dense=dense),
        cond_layout=PackedLayout.of([config.cond_tokens] * len(samples), device, dense=dense),
        phases_NP=phases(coords, config.head_dim, dtype),
        drawn=tuple(range(len(samples)) if drawn is None else drawn),
        share=share,
    )


def make_batch(
    config: FlowConfig,
    seed: int,
    device: torch.device | str,
    *,
    dtype: torch.dtype = torch.float32,
    order: Sequence[int] | None = None,
    conditioned: bool = False,
) -> Batch:
    """All samples of a step in one batch (see :func:`draw_samples` and :func:`pack`)."""
    samples = draw_samples(config, seed, order=order, conditioned=conditioned)
    return pack(config, samples, device, dtype=dtype)


def flow_loss(
    model: FlowModel, batch: Batch, forward: Callable[..., Tensor] | None = None
) -> Tensor:
    """The batch's part of the step's loss: squared error of the velocity, over all elements.

    Long samples weigh more, as upstream's. A micro-batch counts by its tokens, so that the losses
    of any split of a step's samples add up to the same mean; where all samples are equally long,
    that is upstream's division by the number of micro-batches.

    Args:
        model: whose precision the loss is taken in.
        batch: the micro-batch.
        forward: what runs the model where it is wrapped (several ranks); by default itself.
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
        loss = F.mse_loss(out_NL.to(model.precision.norm), batch.velocity())
    return loss if batch.share == 1.0 else loss * batch.share
