"""What the exchange between ranks costs in a step: measured untimed, after the steps of a sample.

A step without any exchange is its forward and backward with gradients kept local, and the part of
the update that computes. The exchanges alone are timed at the sizes that a step sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from experiments.workloads.team import Figures, Team

REPEATS = 3
BUCKET_BYTES = 25 << 20
"""What DDP averages at a time (its default ``bucket_cap_mb``)."""


def figures(step: Any, team: Team) -> Figures:
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
    finally:
        step.optimizer = optimizer
    found = {"compute_s": compute, "gradients_s": _averaging(size, team, device)}
    if optimizer is None:
        nothing = (0.0,) * REPEATS
        return {**found, "update_s": nothing, "weights_s": nothing}
    update = _times(optimizer.step, team, device)
    return {**found, "update_s": update, "weights_s": _sending(size, team, device)}


def _averaging(size: int, team: Team, device: torch.device) -> tuple[float, ...]:
    """All-reduce ``size`` bytes of fp32, a bucket at a time."""
    pieces = _pieces(size, device)
    return _times(lambda: [dist.all_reduce(piece) for piece in pieces], team, device)


def _sending(size: int, team: Team, device: torch.device) -> tuple[float, ...]:
    """Each rank sends its share of ``size`` bytes to all others, as ZeRO-1 does."""
    share = torch.zeros(max(1, size // 4 // team.size), device=device)
    return _times(
        lambda: [dist.broadcast(share, src=rank) for rank in range(team.size)], team, device
    )


def _pieces(size: int, device: torch.device) -> list[torch.Tensor]:
    """Views of one bucket that together are ``size`` bytes."""
    bucket = torch.zeros(min(size, BUCKET_BYTES) // 4, device=device)
    whole, rest = divmod(size // 4, bucket.numel())
    return [bucket] * whole + ([bucket[:rest]] if rest else [])


def _times(work: Callable[[], Any], team: Team, device: torch.device) -> tuple[float, ...]:
    """Seconds of each repeat, from the moment all ranks begin to an idle device."""
    found = []
    for _ in range(REPEATS):
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
