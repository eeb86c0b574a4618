"""Data parallelism with ZeRO-1 for one rank: DDP, a sharded update, and figures of both.

Every rank holds all weights and gradients and a share of the optimiser's state. Gradients are
averaged by DDP while the backward runs; after the update each rank sends out the weights that it
updated. DeepSpeed's way of the same is :mod:`.deepspeed_team`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from experiments.ranks import communication
from experiments.ranks.checksums import checksums
from experiments.ranks.communication import Exchange
from experiments.workloads.team import Figures

SHARD_STRIDE = 1_000_003
"""Between the seeds of two ranks' shards; the first rank's is that of a run on one rank."""

PATIENCE_S = 60.0
"""How much longer than the group's limit an exchange waits: the supervisor ends what hangs."""

NO_LIMIT_S = 24 * 3600.0

DDP_BUCKET_BYTES = 25 << 20
"""What DDP averages at a time (its default ``bucket_cap_mb``)."""


class RankTeam:
    """The ranks of one arm as one of them sees them (see :class:`experiments.workloads.team.Team`).

    Attributes:
        agreed: what must be equal on all ranks, by name: digests of weights and gradients.
        exchange: how gradients and weights go from rank to rank.
    """

    exchange = Exchange(bucket_bytes=DDP_BUCKET_BYTES)

    def __init__(self, rank: int, size: int, device: torch.device, control: Any) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.agreed: dict[str, str] = {}
        self._control = control
        self._barrier_s: list[float] = []
        self._own_s: tuple[float, ...] = ()

    def shard(self, seed: int) -> int:
        """The seed of this rank's part of the global batch."""
        return seed + SHARD_STRIDE * self.rank

    def wrap(self, model: Any) -> Callable[..., Tensor]:
        """The model under DDP; its weights are noted before DDP makes them the first rank's."""
        self._note("weights at the start", model)
        return DistributedDataParallel(
            model,
            device_ids=[0] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )

    def optimizer(self, kind: Any, parameters: Iterable[Tensor], **options: Any) -> Any:
        """ZeRO-1: each rank updates a share of the weights and holds the state of that share."""
        return ZeroRedundancyOptimizer(
            list(parameters), optimizer_class=kind, parameters_as_bucket_view=True, **options
        )

    def backward(self, loss: Any) -> None:
        """DDP averages the gradients while the backward runs."""
        loss.backward()

    def local(self, forward: Callable[..., Any]) -> contextlib.AbstractContextManager[Any]:
        """DDP without its exchange."""
        wrapped: Any = forward
        context: contextlib.AbstractContextManager[Any] = wrapped.no_sync()
        return context

    def start(self) -> None:
        """Wait for the slowest rank, over the host: no work is put on the device."""
        start = time.perf_counter()
        dist.barrier(group=self._control)
        self._barrier_s.append(time.perf_counter() - start)

    def slowest(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """For each step the time of the rank that took longest."""
        self._own_s = tuple(seconds)
        times = torch.tensor(self._own_s, dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX, group=self._control)
        return tuple(times.tolist())

    def after(self, step: Any) -> Figures:
        """Note weights and gradients, then measure what the exchange costs."""
        self._note("weights after the steps", step.model)
        if self.exchange.gradients_stay:
            self._note("gradients", step.model, gradients=True)
        count = len(self._own_s)
        own = {"own_step_s": self._own_s, "barrier_s": tuple(self._barrier_s[-count:])}
        return {**own, **communication.figures(step, self, self.exchange)}

    def leave(self) -> None:
        """Wait until every rank is done: none leaves another's exchange unanswered."""
        dist.barrier(group=self._control)

    def _note(self, what: str, model: Any, *, gradients: bool = False) -> None:
        found = checksums(model, gradients=gradients)
        self.agreed |= {f"{what}: {name}": value for name, value in found.items()}


def meet(
    meeting: Path,
    rank: int,
    size: int,
    *,
    cuda: bool,
    limit_s: float | None,
    team: type[RankTeam] = RankTeam,
) -> RankTeam:
    """Join the group: NCCL between GPUs, gloo on CPUs and for what the hosts say to each other.

    Args:
        meeting: a file that all ranks can write; it is there for this group alone.
        rank: this rank.
        size: number of ranks.
        cuda: whether this rank has a GPU; it is the only one that the rank sees.
        limit_s: the group's time limit; an exchange waits longer than that.
        team: how the ranks work together.
    """
    device = torch.device("cuda:0" if cuda else "cpu")
    timeout = timedelta(seconds=(limit_s or NO_LIMIT_S) + PATIENCE_S)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timeout,
        device_id=device if cuda else None,
    )
    control = dist.new_group(backend="gloo", timeout=timeout) if cuda else dist.group.WORLD
    return team(rank, size, device, control)
