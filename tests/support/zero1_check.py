"""One rank of two: data parallelism with ZeRO-1 against the same training on one rank.

``python tests/support/zero1_check.py RANK SIZE MEETING`` prints the largest differences as JSON.
The reference holds the whole batch: the mean of the shards' gradients, and AdamW with all state.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

from experiments.ranks.checksums import checksums
from experiments.ranks.parallel import meet
from experiments.ranks.rank_worker import take_place

STEPS = 4
OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.01, "eps": 1e-8}


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(x)
    return out.square().mean()


def main() -> None:
    rank, size, meeting = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    take_place(os.environ, rank, size, cuda=False)
    team = meet(meeting, rank, size, cuda=False, limit_s=60)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 1))
    alone = copy.deepcopy(model)
    optimizer = team.optimizer(torch.optim.AdamW, model.parameters(), **OPTIONS)
    forward = team.wrap(model)
    whole = torch.optim.AdamW(alone.parameters(), **OPTIONS)
    worst = 0.0
    for step in range(STEPS):
        model.zero_grad(set_to_none=True)
        with team.local(forward):
            loss(forward, batch(rank, 2 * step)).backward()  # type: ignore[arg-type]
        loss(forward, batch(rank, 2 * step + 1)).backward()  # type: ignore[arg-type]
        alone.zero_grad(set_to_none=True)
        for other in range(size):
            for micro in (0, 1):
                (loss(alone, batch(other, 2 * step + micro)) / size).backward()
        for mine, true in zip(model.parameters(), alone.parameters(), strict=True):
            worst = max(worst, float((mine.grad - true.grad).abs().max()))
        optimizer.step()
        whole.step()
    weights = max(
        float((mine - true).detach().abs().max())
        for mine, true in zip(model.parameters(), alone.parameters(), strict=True)
    )
    state = sum(
        moment.numel()
        for held in optimizer.optim.state.values()
        for name, moment in held.items()
        if name != "step"
    )
    found = {
        "gradients": worst,
        "weights": weights,
        "state_share": state / (2 * sum(p.numel() for p in model.parameters())),
        "checksums": checksums(model),
    }
    team.leave()
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
