"""The training loop: batches, schedule, the two optimisers, and what the result is worth."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.model import (
    RopeTables,
    Weights,
    causal_attention,
    hidden_states,
    logits,
    rope_tables,
)
from experiments.workloads.decode.muon import Optimiser
from experiments.workloads.decode.train_recipes import Recipe
from experiments.workloads.decode.weights import assemble, shapes

WARM_SHARE = 0.02
FALL_SHARE = 0.5
WEIGHT_DECAY = 0.1
LARGEST_GRADIENT = 1.0
"""Norm of all gradients, above which they are scaled down (adamw)."""
REPORT_STEPS = 50


class Steps(Protocol):
    """What applies the gradients."""

    def step(self, scale: float) -> None:
        """Apply them with every learning rate times ``scale``, and clear them."""


class AdamW:
    """AdamW (Loshchilov and Hutter 2019) with clipped gradients; one kernel a step on CUDA."""

    def __init__(self, named: Mapping[str, Tensor], learning_rate: float) -> None:
        self._parameters = list(named.values())
        self._learning_rate = learning_rate
        matrices = [tensor for tensor in self._parameters if tensor.ndim == 2]
        vectors = [tensor for tensor in self._parameters if tensor.ndim != 2]
        self._adam = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": WEIGHT_DECAY},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=learning_rate,
            betas=(0.9, 0.95),
            fused=self._parameters[0].is_cuda,
        )

    def step(self, scale: float) -> None:
        """Clip, apply, clear."""
        torch.nn.utils.clip_grad_norm_(self._parameters, LARGEST_GRADIENT)
        for group in self._adam.param_groups:
            group["lr"] = self._learning_rate * scale
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)


def optimiser_of(recipe: Recipe, named: Mapping[str, Tensor]) -> Steps:
    """The recipe's optimiser over named parameters."""
    if recipe.optimiser == "adamw":
        return AdamW(named, recipe.learning_rate)
    return Optimiser(named)


def loss_of(config: ModelConfig, weights: Weights, rope: RopeTables, tokens_BT: Tensor) -> Tensor:
    """Mean cross entropy of the next token, in nat."""
    batch, length = tokens_BT.shape[0], tokens_BT.shape[1] - 1
    positions = torch.arange(length, device=tokens_BT.device).repeat(batch)
    x_NC = hidden_states(
        config,
        weights,
        tokens_BT[:, :-1].reshape(-1),
        rope.at(positions),
        lambda _, q, k, v: causal_attention(q, k, v, batch),
    )
    return functional.cross_entropy(logits(weights, x_NC).float(), tokens_BT[:, 1:].reshape(-1))


def places(recipe: Recipe, seconds: float | None) -> Iterator[float]:
    """The place in the schedule before each step, from 0 up to ``recipe.steps``.

    With a time limit the place is where the clock is, if that is further on than the count: the
    schedule is gone through whole, with fewer steps. Long contexts are then long enough in steps.
    """
    started = time.monotonic()
    for step in range(recipe.steps):
        passed = 0.0 if seconds is None else (time.monotonic() - started) / seconds
        place = max(float(step), passed * recipe.steps)
        if place >= recipe.steps:
            return
        yield place


def batch_of(ids: Tensor, recipe: Recipe, place: float, generator: torch.Generator) -> Tensor:
    """``tokens_BT`` of random windows, long ones in the last share of the schedule."""
    late = place >= recipe.steps * (1 - recipe.long_share)
    length = min(recipe.long_tokens if late else recipe.short_tokens, len(ids) - 2)
    count = max(1, recipe.batch_tokens // length)
    starts_B1 = torch.randint(len(ids) - length - 1, (count, 1), generator=generator)
    window_T = torch.arange(length + 1, device=ids.device)
    return ids[starts_B1.to(ids.device) + window_T].long()


def schedule(place: float, steps: int) -> float:
    """Warm up over 2 %, hold, then fall to zero over the last half."""
    return min(1.0, (place + 1) / (WARM_SHARE * steps), (steps - place) / (FALL_SHARE * steps))


def initial(config: ModelConfig, seed: int, device: torch.device) -> dict[str, Tensor]:
    """Named fp32 parameters: normal with std 1/sqrt(fan in), norms at 1, residual outputs at 0."""
    generator = torch.Generator().manual_seed(seed)
    named = {}
    for name, shape in shapes(config).items():
        if len(shape) == 1:
            value = torch.ones(shape)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            value = torch.zeros(shape)
        else:
            value = torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
        named[name] = value.to(device).requires_grad_()
    return named


def train(
    recipe: Recipe, ids: Tensor, seed: int, device: torch.device, seconds: float | None = None
) -> tuple[Weights, int]:
    """Run the recipe, within ``seconds`` where given.

    On CUDA the products run in bf16 under autocast and the residual stream stays fp32.

    Returns:
        The trained weights (fp32) and the number of steps.
    """
    config, on_cuda = recipe.config, device.type == "cuda"
    named = initial(config, seed, device)
    optimiser = optimiser_of(recipe, named)
    dtype = torch.bfloat16 if on_cuda else torch.float32
    rope = rope_tables(config, recipe.long_tokens, device, dtype)
    generator = torch.Generator().manual_seed(seed)
    ids = ids.to(device)
    started, recent, done = time.monotonic(), 0.0, 0
    for place in places(recipe, seconds):
        tokens_BT = batch_of(ids, recipe, place, generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_cuda):
            loss = loss_of(config, assemble(config, _head_norms(named, dtype)), rope, tokens_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step(schedule(place, recipe.steps))
        recent = loss.item() if done == 0 else 0.98 * recent + 0.02 * loss.item()
        done += 1
        if done % REPORT_STEPS == 0:
            _report(done, place / recipe.steps, recent, time.monotonic() - started)
    _report(done, 1.0, recent, time.monotonic() - started)
    return assemble(config, {name: tensor.detach() for name, tensor in named.items()}), done


def _head_norms(named: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The parameters with the norms of query and key heads in the dtype of what they scale."""
    heads = (".q_norm.weight", ".k_norm.weight")
    return {n: tensor.to(dtype) if n.endswith(heads) else tensor for n, tensor in named.items()}


def _report(step: int, share: float, loss: float, elapsed_s: float) -> None:
    print(f"step {step} ({share:.0%}) loss {loss:.3f} {elapsed_s:.0f} s", flush=True)


@torch.no_grad()
def quality(recipe: Recipe, weights: Weights, ids: Tensor) -> dict[str, float]:
    """Held-out loss, and how peaked the next-token distribution is (gap of the two best logits)."""
    config, length = recipe.config, recipe.long_tokens
    count = max(1, min(16, (len(ids) - 1) // length))
    rope = rope_tables(config, length, weights.device, torch.float32)
    losses, gaps = [], []
    for start in range(0, count * length, length):
        window = ids[start : start + length + 1].to(weights.device).long()
        losses.append(loss_of(config, weights, rope, window.unsqueeze(0)).item())
        positions = torch.arange(len(window) - 1, device=weights.device)
        x_NC = hidden_states(
            config,
            weights,
            window[:-1],
            rope.at(positions),
            lambda _, q, k, v: causal_attention(q, k, v, 1),
        )
        best = logits(weights, x_NC).topk(2, dim=-1).values
        gaps.append(best[:, 0] - best[:, 1])
    return {
        "held_out_loss_nat": round(sum(losses) / len(losses), 4),
        "median_top2_gap_nat": round(torch.cat(gaps).median().item(), 4),
    }
