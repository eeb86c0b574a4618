r"""Train the shipped model, or one of about 100 M parameters, from text found on the machine.

    python -m experiments.workloads.decode.train --text kjv.txt --format bible --out FOLDER
    python -m experiments.workloads.decode.train --text /usr/lib/python3 --glob '*.py' \
        --format files --size 100m --device cuda --seconds 170 --out FOLDER

Greedy streams of a trained model are peaked, so that equal tokens mean something; random weights
decide by rounding. The folder that is written is a Hugging Face folder: config.json,
model.safetensors (bf16), tokenizer.json, and prompts.txt with text that was not trained on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from experiments.workloads.decode.corpus import (
    Corpus,
    bible_corpus,
    encode_documents,
    files_corpus,
    lines_corpus,
    read_text,
    train_tokenizer,
)
from experiments.workloads.decode.model import Weights
from experiments.workloads.decode.prompts import PromptSet
from experiments.workloads.decode.train_loop import quality, train
from experiments.workloads.decode.train_recipes import RECIPES, Recipe
from experiments.workloads.decode.weights import save_weights
from levers.errors import BadParameter

HELD_OUT_BOOK = "Mark"
WRITING_S = 8.0
"""Seconds of a time limit that are kept for the held-out loss and for writing the folder."""


def corpus_of(asked: argparse.Namespace, recipe: Recipe) -> Corpus:
    """The text that was asked for, split into what is trained on and what is held out.

    Raises:
        BadParameter: there is too little of it to hold any out.
    """
    if asked.format == "files":
        held, most = recipe.held_out_characters, recipe.most_characters
        found = files_corpus(asked.text, asked.glob, held, most)
    elif asked.format == "bible":
        found = bible_corpus(read_text(asked.text, asked.glob), HELD_OUT_BOOK)
    else:
        found = lines_corpus(read_text(asked.text, asked.glob), recipe.held_out_characters)
    if not found.held_out:
        raise BadParameter(
            f"{asked.text} ({asked.glob}) holds {len(found.documents)} documents: too few to hold "
            "one in ten out",
            cure="name more text with --text and --glob",
        )
    return found


def budget_s(asked: argparse.Namespace, started: float) -> float | None:
    """What is left for the training steps of the limit of the whole command; None without one.

    Raises:
        BadParameter: reading and tokenising took all of it.
    """
    if asked.seconds is None:
        return None
    passed = time.monotonic() - started
    left: float = asked.seconds - passed - WRITING_S
    if left <= 0:
        raise BadParameter(
            f"{asked.seconds:.0f} s are over: the text took {passed:.0f} s, writing takes "
            f"{WRITING_S:.0f} s",
            cure="allow more --seconds, or name less text",
        )
    return left


def write_folder(
    out: Path,
    recipe: Recipe,
    weights: Weights,
    tokenizer: Tokenizer,
    prompts: str,
    record: Mapping[str, Any],
) -> None:
    """Write the model as a Hugging Face folder, with its held-out text and how it was made."""
    out.mkdir(parents=True, exist_ok=True)
    config = recipe.config.to_json() | {"training": dict(record)}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (out / "prompts.txt").write_text(prompts, encoding="utf-8")
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    save_weights(recipe.config, weights, out / "model.safetensors")


def make(asked: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """Read, tokenise, train, write; returns the record that stands in config.json.

    Raises:
        BadParameter: too little text, or too little time.
    """
    started = time.monotonic()
    corpus = corpus_of(asked, recipe)
    tokenizer = train_tokenizer(corpus, recipe.config.vocab_size, recipe.tokenizer_characters)
    vocabulary = tokenizer.get_vocab_size()
    if vocabulary != recipe.config.vocab_size:
        print(f"the text gives {vocabulary} tokens of {recipe.config.vocab_size}")
    ids = torch.from_numpy(encode_documents(tokenizer, corpus.documents, corpus.stop))
    held_out = torch.from_numpy(encode_documents(tokenizer, corpus.held_out, corpus.stop))
    PromptSet(held_out.tolist(), recipe.prompt_tokens)  # refuses a text that is too short
    print(
        f"{len(corpus.documents)} documents, {len(ids)} tokens, {len(held_out)} held out, "
        f"{recipe.config.parameters} parameters, {time.monotonic() - started:.0f} s",
        flush=True,
    )
    device = torch.device(asked.device)
    weights, steps = train(recipe, ids, asked.seed, device, budget_s(asked, started))
    record = quality(recipe, weights, held_out) | {
        "steps": steps,
        "seed": asked.seed,
        "tokens": steps * recipe.batch_tokens,
        "text_sha256": corpus.digest,
        "documents": len(corpus.documents),
        "text_tokens": len(ids),
        "held_out_tokens": len(held_out),
    }
    write_folder(asked.out, recipe, weights, tokenizer, corpus.prompts_text, record)
    print(record | {"seconds": round(time.monotonic() - started)}, flush=True)
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, help="a text file, or a folder of them")
    parser.add_argument("--glob", default="*.txt", help="which files of a folder")
    parser.add_argument(
        "--format",
        choices=("lines", "bible", "files"),
        default="lines",
        help="a document is a line, a verse of the program bible, or a file",
    )
    parser.add_argument("--size", choices=sorted(RECIPES), default="shipped")
    parser.add_argument("--steps", type=int, default=None, help="of the whole schedule")
    parser.add_argument("--seconds", type=float, default=None, help="limit of the whole command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    recipe = RECIPES[asked.size]
    if asked.steps is not None:
        recipe = dataclasses.replace(recipe, steps=asked.steps)
    try:
        make(asked, recipe)
    except BadParameter as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
