"""What the exchange between ranks costs in a step: measured untimed, after the steps of a sample.

A step without any exchange is its forward and backward with gradients kept local, and the part of
the update that computes. The exchanges alone are timed at the sizes that a step sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from experiments.workloads.team import Figures, Team

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Exchange:
    """How gradients and weights go from rank to rank, so that it can be timed alone.

    Attributes:
        bucket_bytes: of gradients that are averaged at a time.
        gathers: one all-gather collects the updated weights, not a broadcast from each rank.
        gradients_stay: after a step every rank holds the averaged gradients of all weights; else
            each has those of its share alone, and the update uses them up.
    """

    bucket_bytes: int
    gathers: bool = False
    gradients_stay: bool = True


def figures(step: Any, team: Team, exchange: Exchange) -> Figures:
    """Seconds by name, one for each repeat.

    ``compute_s`` forward and backward without exchange, ``update_s`` the optimiser's step with the
    exchange of weights, ``gradients_s`` averaging as many bytes as the gradients have,
    ``weights_s`` sending out as many as the weights have (ZeRO-1 only).
    """
    trained = [p for p in step.model.parameters() if p.requires_grad]
    size = sum(p.numel() * p.element_size() for p in trained)
    device = trained[0].device
    optimizer, step.optimizer = step.optimizer, None
    try:
        with team.local(step.forward):
            compute = _times(step.run, team, device)
        found = {"compute_s": compute, "gradients_s": _averaging(size, team, device, exchange)}
        if optimizer is None:
            nothing = (0.0,) * REPEATS
            return {**found, "update_s": nothing, "weights_s": nothing}
        first = _nothing if exchange.gradients_stay else step.run
        update = _times(optimizer.step, team, device, first=first)
    finally:
        step.optimizer = optimizer
    return {**found, "update_s": update, "weights_s": _sending(size, team, device, exchange)}


def _averaging(
    size: int, team: Team, device: torch.device, exchange: Exchange
) -> tuple[float, ...]:
    """All-reduce ``size`` bytes of fp32, a bucket at a time."""
    pieces = _pieces(size, exchange.bucket_bytes, device)
    return _times(lambda: [dist.all_reduce(piece) for piece in pieces], team, device)


def _sending(size: int, team: Team, device: torch.device, exchange: Exchange) -> tuple[float, ...]:
    """Each rank sends its share of ``size`` bytes to all others, as ZeRO-1 does."""
    share = torch.zeros(max(1, size // 4 // team.size), device=device)
    if exchange.gathers:
        whole = share.new_empty(share.numel() * team.size)
        return _times(lambda: _gather(whole, share), team, device)
    return _times(
        lambda: [dist.broadcast(share, src=rank) for rank in range(team.size)], team, device
    )


def _gather(whole: torch.Tensor, share: torch.Tensor) -> None:
    """One all-gather, by the name that this version of PyTorch wants."""
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    getattr(dist, name)(whole, share)


def _pieces(size: int, bucket_bytes: int, device: torch.device) -> list[torch.Tensor]:
    """Views of one bucket that together are ``size`` bytes."""
    bucket = torch.zeros(min(size, bucket_bytes) // 4, device=device)
    whole, rest = divmod(size // 4, bucket.numel())
    return [bucket] * whole + ([bucket[:rest]] if rest else [])


def _nothing() -> None:
    """What comes before a repeat that uses nothing up."""


def _times(
    work: Callable[[], Any],
    team: Team,
    device: torch.device,
    *,
    first: Callable[[], Any] = _nothing,
) -> tuple[float, ...]:
    """Seconds of each repeat, from the moment all ranks begin to an idle device.

    Args:
        work: what is timed.
        team: the ranks that do it together.
        device: where it runs.
        first: untimed before each repeat: what the last one used up.
    """
    found = []
    for _ in range(REPEATS):
        first()
        _wait(device)
        team.start()
        start = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - start)
    return tuple(found)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
