"""Train the shipped model, or one of about 100 M parameters, from plain text.

    python -m experiments.workloads.decode.train --text kjv.txt --format bible --out FOLDER
    python -m experiments.workloads.decode.train --text FOLDER --size 100m --device cuda --out OUT

Greedy streams of a trained model are peaked, so that equal tokens mean something; random weights
decide by rounding. The folder that is written is a Hugging Face folder: config.json,
model.safetensors (bf16), tokenizer.json, and prompts.txt with text that was not trained on.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.corpus import (
    documents_of,
    encode_documents,
    read_text,
    train_tokenizer,
    verses_of,
)
from experiments.workloads.decode.model import (
    RopeTables,
    Weights,
    causal_attention,
    hidden_states,
    logits,
    rope_tables,
)
from experiments.workloads.decode.muon import Optimiser
from experiments.workloads.decode.weights import assemble, save_weights, shapes


@dataclass(frozen=True, slots=True)
class Recipe:
    """Dimensions and schedule; the last ``long_share`` of the steps sees long contexts."""

    config: ModelConfig
    steps: int
    batch_tokens: int
    short_tokens: int = 256
    long_tokens: int = 1024
    long_share: float = 0.25


RECIPES = {
    "shipped": Recipe(
        ModelConfig("qwen3", 1024, 128, 512, 3, 16, 8, 16, max_positions=4096, eos_token_ids=(0,)),
        steps=1200,
        batch_tokens=2048,
        short_tokens=128,
        long_share=0.15,
    ),
    "100m": Recipe(
        ModelConfig(
            "qwen3", 8192, 768, 2048, 13, 16, 8, 64, max_positions=4096, eos_token_ids=(0,)
        ),
        steps=3000,
        batch_tokens=65536,
        short_tokens=1024,
        long_tokens=4096,
    ),
}
HELD_OUT_BOOK = "Mark"
HELD_OUT_CHARACTERS = 80_000
"""Prompts need about this much text: 184 windows of up to 900 tokens, overlapping."""


def split_text(text: str, form: str) -> tuple[list[str], list[str]]:
    """Documents to train on, and the held-out ones that become the prompts."""
    if form == "bible":
        verses = verses_of(text)
        held_out = [verse for book, verse in verses if book == HELD_OUT_BOOK]
        return [verse for book, verse in verses if book != HELD_OUT_BOOK], held_out
    documents = documents_of(text)
    taken, count = 0, 0
    while taken < HELD_OUT_CHARACTERS and count < len(documents) // 10:
        count += 1
        taken += len(documents[-count])
    return documents[: len(documents) - count], documents[len(documents) - count :]


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


def batches(
    ids: Tensor, recipe: Recipe, seed: int, device: torch.device
) -> Iterator[tuple[int, Tensor]]:
    """``(step, tokens_BT)`` of random windows, short contexts first."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(recipe.steps):
        late = step >= recipe.steps * (1 - recipe.long_share)
        length = recipe.long_tokens if late else recipe.short_tokens
        count = recipe.batch_tokens // length
        starts = torch.randint(len(ids) - length - 1, (count,), generator=generator)
        yield step, torch.stack([ids[s : s + length + 1] for s in starts.tolist()]).to(device)


def schedule(step: int, steps: int) -> float:
    """Warm up over 2 %, hold, then fall to zero over the last half."""
    return min(1.0, (step + 1) / (0.02 * steps), (steps - step) / (0.5 * steps))


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


def train(recipe: Recipe, ids: Tensor, seed: int, device: torch.device) -> Weights:
    """Run the recipe and return the trained weights (fp32)."""
    config = recipe.config
    named = initial(config, seed, device)
    optimiser = Optimiser(named)
    rope = rope_tables(config, recipe.long_tokens, device, torch.float32)
    started, recent = time.monotonic(), 0.0
    for step, tokens_BT in batches(ids, recipe, seed, device):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(config, assemble(config, named), rope, tokens_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step(schedule(step, recipe.steps))
        recent = loss.item() if step == 0 else 0.98 * recent + 0.02 * loss.item()
        if step % 50 == 49 or step == recipe.steps - 1:
            elapsed = time.monotonic() - started
            print(f"step {step + 1}/{recipe.steps} loss {recent:.3f} {elapsed:.0f} s", flush=True)
    return assemble(config, {name: tensor.detach() for name, tensor in named.items()})


@torch.no_grad()
def quality(recipe: Recipe, weights: Weights, ids: Tensor) -> dict[str, float]:
    """Held-out loss, and how peaked the next-token distribution is (gap of the two best logits)."""
    config, length = recipe.config, recipe.long_tokens
    count = max(1, min(16, (len(ids) - 1) // length))
    rope = rope_tables(config, length, weights.device, torch.float32)
    losses, gaps = [], []
    for start in range(0, count * length, length):
        window = ids[start : start + length + 1].to(weights.device)
        tokens_BT = window.unsqueeze(0)
        losses.append(loss_of(config, weights, rope, tokens_BT).item())
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


def main() -> None:
    """Train and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="a text file, or a folder of them")
    parser.add_argument("--format", choices=("lines", "bible"), default="lines")
    parser.add_argument("--size", choices=sorted(RECIPES), default="shipped")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    recipe = RECIPES[asked.size]
    if asked.steps is not None:
        recipe = dataclasses.replace(recipe, steps=asked.steps)
    text = read_text(asked.text)
    documents, held_out = split_text(text, asked.format)
    tokenizer = train_tokenizer(documents, recipe.config.vocab_size)
    ids = torch.tensor(encode_documents(tokenizer, documents))
    print(f"{len(documents)} documents, {len(ids)} tokens, {recipe.config.parameters} parameters")
    weights = train(recipe, ids, asked.seed, torch.device(asked.device))
    figures = quality(recipe, weights, torch.tensor(encode_documents(tokenizer, held_out)))
    print(figures)
    asked.out.mkdir(parents=True, exist_ok=True)
    config = recipe.config.to_json() | {
        "training": figures
        | {"steps": recipe.steps, "seed": asked.seed, "tokens": recipe.steps * recipe.batch_tokens}
        | {"text_sha256": hashlib.sha256(text.encode()).hexdigest()}
    }
    (asked.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (asked.out / "prompts.txt").write_text("\n".join(held_out) + "\n")
    tokenizer.save(str(asked.out / "tokenizer.json"), pretty=False)
    save_weights(recipe.config, weights, asked.out / "model.safetensors")


if __name__ == "__main__":
    main()
