"""One rank of two: data parallelism with ZeRO-1 against the same training on one rank.

``python tests/support/zero1_check.py WAY RANK SIZE MEETING`` prints the largest differences as
JSON, and what the way (``torch`` or ``deepspeed``) left changed in the process. The reference holds
the whole batch: the mean of the shards' gradients, and AdamW with all state.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from experiments import global_state
from experiments.ranks.checksums import checksums
from experiments.ranks.parallel import RankTeam, meet
from experiments.ranks.rank_worker import take_place

STEPS = 4

STEEP = 50.0
"""Makes the norm of the gradients larger than one, at which an engine may clip by default."""

OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.01, "eps": 1e-8, "fused": True}


def team_of(way: str) -> type[RankTeam]:
    if way == "torch":
        return RankTeam
    from experiments.ranks.deepspeed_team import DeepSpeedTeam

    return DeepSpeedTeam


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(x)
    return STEEP * out.square().mean()


def gradient(way: str, parameter: nn.Parameter) -> torch.Tensor:
    """The averaged gradient, before the update."""
    if way == "torch":
        assert parameter.grad is not None
        return parameter.grad
    from deepspeed.utils import safe_get_full_grad  # type: ignore[import-untyped, unused-ignore]

    found: torch.Tensor = safe_get_full_grad(parameter)
    return found


def moments(optimizer: torch.optim.Optimizer) -> int:
    """Elements of this rank's state."""
    return sum(
        moment.numel()
        for held in optimizer.state.values()
        for name, moment in held.items()
        if name != "step"
    )


def autocast_inside(forward: Any, model: nn.Sequential) -> str:
    """Type of a product inside the model under an autocast that the engine also sees on a CPU.

    The engine asks for CUDA's autocast, whatever the device is; both are on here.
    """
    seen = []
    hook = model[0].register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.set_autocast_enabled("cuda", True)
        try:
            loss(forward, batch(0, 0))
        finally:
            torch.set_autocast_enabled("cuda", False)
    hook.remove()
    return str(seen[0])


def main() -> None:
    way, rank, size, meeting = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    take_place(os.environ, rank, size, cuda=False)
    torch.set_num_threads(1)
    before = global_state.take({})
    team = meet(meeting, rank, size, cuda=False, limit_s=60, team=team_of(way))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 1))
    count = sum(p.numel() for p in model.parameters())
    alone = copy.deepcopy(model)
    optimizer = team.optimizer(torch.optim.AdamW, model.parameters(), **OPTIONS)
    forward = team.wrap(model)
    whole = torch.optim.AdamW(alone.parameters(), **OPTIONS)  # type: ignore[arg-type]
    worst, norm, losses = 0.0, 0.0, []
    for step in range(STEPS):
        model.zero_grad(set_to_none=True)
        with team.local(forward):
            team.backward(loss(forward, batch(rank, 2 * step)))
        last = loss(forward, batch(rank, 2 * step + 1))
        team.backward(last)
        losses.append(last.item())
        alone.zero_grad(set_to_none=True)
        for other in range(size):
            for micro in (0, 1):
                (loss(alone, batch(other, 2 * step + micro)) / size).backward()
        norm = max(norm, float(nn.utils.get_total_norm([p.grad for p in alone.parameters()])))
        for mine, true in zip(model.parameters(), alone.parameters(), strict=True):
            worst = max(worst, float((gradient(way, mine) - true.grad).abs().max()))
        optimizer.step()
        whole.step()
    weights = max(
        float((mine - true).detach().abs().max())
        for mine, true in zip(model.parameters(), alone.parameters(), strict=True)
    )
    held = optimizer.optim if way == "torch" else team._plain  # type: ignore[attr-defined]
    found = {
        "gradients": worst,
        "norm": norm,
        "weights": weights,
        "losses": losses,
        "state_share": moments(held) / (2 * count),
        "checksums": checksums(model),
        "autocast": autocast_inside(forward, model),
        "changed": before.changed(global_state.take({})),
        "children": [one.name() for one in psutil.Process().children(recursive=True)],
        "unwanted": [one for one in ("mlflow", "torch._inductor.compile_fx") if one in sys.modules],
    }
    team.leave()
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
