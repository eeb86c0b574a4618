"""One training step: fresh gradients, forward, loss, backward, optionally the fused update."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from experiments.workloads.flow.batch import Batch, flow_loss
from experiments.workloads.flow.config import SlatConfig
from experiments.workloads.flow.model import SlatFlow
from experiments.workloads.flow.precision import Precision
from experiments.workloads.flow.sites import Sites
from experiments.workloads.team import ALONE, Team

LEARNING_RATE = 1e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.01
ADAM_EPS = 1e-8
"""Upstream's AdamW."""


def build_model(
    config: SlatConfig, sites: Sites, precision: Precision, seed: int, device: torch.device | str
) -> SlatFlow:
    """The model with fp32 weights drawn from the seed, on the device itself."""
    with torch.random.fork_rng(devices=_cuda_devices(device)):
        torch.manual_seed(seed)
        with torch.device(device):
            return SlatFlow(config, sites, precision)


def _cuda_devices(device: torch.device | str) -> list[torch.device]:
    where = torch.device(device)
    return [where] if where.type == "cuda" else []


def adamw(
    model: SlatFlow, learning_rate: float = LEARNING_RATE, team: Team = ALONE
) -> torch.optim.Optimizer:
    """Upstream's optimiser, fused; several ranks divide its state among them."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = team.optimizer(
        torch.optim.AdamW,
        trained,
        lr=learning_rate,
        betas=BETAS,
        weight_decay=WEIGHT_DECAY,
        eps=ADAM_EPS,
        fused=True,
    )
    return optimizer


def synchronise(device: torch.device | str) -> None:
    """Wait until the device has done what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(slots=True)
class Step:
    """The work that is timed; several ranks begin it together and average their gradients."""

    model: SlatFlow
    batch: Batch
    optimizer: torch.optim.Optimizer | None = None
    team: Team = ALONE
    forward: Callable[..., Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.forward = self.team.wrap(self.model)

    def run(self) -> Tensor:
        """One step; the gradients are new each time. Returns the loss, on the device."""
        self.model.zero_grad(set_to_none=True)
        self.batch.cond.grad = None
        loss = flow_loss(self.model, self.batch, self.forward)
        torch.autograd.backward(loss)
        if self.optimizer is not None:
            self.optimizer.step()
        return loss.detach()

    def timed(self) -> tuple[float, Tensor]:
        """Seconds of one step, from an idle device to an idle device, and the loss."""
        device = self.batch.t_B.device
        synchronise(device)
        self.team.start()
        start = time.perf_counter()
        loss = self.run()
        synchronise(device)
        return time.perf_counter() - start, loss
