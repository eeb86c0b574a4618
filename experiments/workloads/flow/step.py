"""One training step: fresh gradients, forward and backward of each micro-batch, the update."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from experiments.workloads.flow.batch import Batch, Sample, flow_loss, pack
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.model import FlowModel
from experiments.workloads.flow.names import MICRO_BATCHES
from experiments.workloads.flow.precision import Precision
from experiments.workloads.flow.sites import Sites
from experiments.workloads.team import ALONE, Team
from levers.errors import OtherWork

LEARNING_RATE = 1e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.01
ADAM_EPS = 1e-8
"""Upstream's AdamW."""


def build_model(
    config: FlowConfig, sites: Sites, precision: Precision, seed: int, device: torch.device | str
) -> FlowModel:
    """The model with fp32 weights drawn from the seed, on the device itself."""
    with torch.random.fork_rng(devices=_cuda_devices(device)):
        torch.manual_seed(seed)
        with torch.device(device):
            return FlowModel(config, sites, precision)


def _cuda_devices(device: torch.device | str) -> list[torch.device]:
    where = torch.device(device)
    return [where] if where.type == "cuda" else []


def adamw(
    model: FlowModel, learning_rate: float = LEARNING_RATE, team: Team = ALONE
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


class Timed(NamedTuple):
    """One timed step.

    A device's queue holds about a thousand launches, and a host that is further ahead waits for
    room in it: ``enqueue_s`` is the most that the host's own work can have taken. A forward is
    shorter than the queue, so ``forward_s`` is that work, unless the forward itself waits for the
    device.

    Attributes:
        step_s: from an idle device to an idle device.
        loss: on the device.
        enqueue_s: until the device had been given all of the step.
        forward_s: what of that went by in the forwards of all micro-batches, losses included.
    """

    step_s: float
    loss: Tensor
    enqueue_s: float
    forward_s: float


Split: TypeAlias = tuple[tuple[int, ...], ...]
"""The positions of the samples in each micro-batch, in the order in which they are packed."""


def _positions(groups: Sequence[Sequence[Sample]], samples: Sequence[Sample]) -> Split:
    """Where the samples of each group are among the step's, each of which must be there once.

    Raises:
        OtherWork: they are not.
    """
    position = {id(one): index for index, one in enumerate(samples)}
    split = tuple(tuple(position.get(id(one), -1) for one in group) for group in groups)
    found = sorted(itertools.chain.from_iterable(split))
    if found != list(range(len(samples))) or not all(split):
        raise OtherWork(
            f"{MICRO_BATCHES} was given {len(samples)} samples and split them into "
            f"{[list(group) for group in split]} (-1: none of them)",
            cure="put each sample of the step into one micro-batch, and no other one",
        )
    return split


@dataclass(slots=True)
class Step:
    """The work that is timed: a model, the samples of a step, and perhaps an optimiser.

    The site of the micro-batches says at each step how the samples are split, and in which order
    each micro-batch has them; each split is packed onto the device once. Several ranks begin a step
    together and average their gradients after its last micro-batch.

    Attributes:
        ran: the micro-batches that the last step worked on.
    """

    model: FlowModel
    samples: tuple[Sample, ...]
    optimizer: torch.optim.Optimizer | None = None
    team: Team = ALONE
    forward: Callable[..., Tensor] = field(init=False)
    ran: tuple[Batch, ...] = field(init=False, default=())
    _packed: dict[Split, tuple[Batch, ...]] = field(init=False, default_factory=dict)
    _forward_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.forward = self.team.wrap(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def load(self, samples: Sequence[Sample]) -> None:
        """Work on other samples from now on."""
        self.samples = tuple(samples)
        self._packed.clear()

    def batches(self) -> tuple[Batch, ...]:
        """The micro-batches, on the device.

        Raises:
            OtherWork: the site's split leaves a sample out, has one twice, or brings its own.
        """
        groups = self.model.sites.micro_batches(self.samples, self.model.config.bs)
        split = _positions(groups, self.samples)
        if split not in self._packed:
            self._packed = {split: self._pack(split)}
        return self._packed[split]

    def _pack(self, split: Split) -> tuple[Batch, ...]:
        total = sum(len(one.coords) for one in self.samples)
        model = self.model
        groups = [[self.samples[index] for index in drawn] for drawn in split]
        return tuple(
            pack(
                model.config,
                group,
                self.device,
                dtype=model.precision.norm,
                share=sum(len(one.coords) for one in group) / total,
                drawn=drawn,
            )
            for group, drawn in zip(groups, split, strict=True)
        )

    def run(self) -> Tensor:
        """One step; the gradients are new each time. Returns the loss, on the device."""
        self.model.zero_grad(set_to_none=True)
        self.ran = self.batches()
        *kept, last = self.ran
        losses = [self._accumulate(batch, self.team.local(self.forward)) for batch in kept]
        losses.append(self._accumulate(last, contextlib.nullcontext()))
        self._note_split()
        if self.optimizer is not None:
            self.optimizer.step()
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _accumulate(
        self, batch: Batch, exchange: contextlib.AbstractContextManager[object]
    ) -> Tensor:
        """Add the gradients of one micro-batch to those that are there."""
        batch.cond.grad = None
        with exchange:
            start = time.perf_counter()
            loss = flow_loss(self.model, batch, self.forward)
            self._forward_s += time.perf_counter() - start
            self.team.backward(loss)
        return loss.detach()

    def _note_split(self) -> None:
        """Tell the site what it has made."""
        first = 0
        for batch in self.ran:
            self.model.sites.micro_batch_ran(batch.drawn, first)
            first += len(batch.drawn)

    def timed(self) -> Timed:
        """One step from an idle device to an idle device; nothing waits for the device within."""
        device = self.device
        synchronise(device)
        self.team.start()
        self._forward_s = 0.0
        start = time.perf_counter()
        loss = self.run()
        enqueue_s = time.perf_counter() - start
        synchronise(device)
        return Timed(time.perf_counter() - start, loss, enqueue_s, self._forward_s)
