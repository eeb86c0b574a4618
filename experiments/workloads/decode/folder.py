"""A model folder as the parent sees it: which files, which digest (torch-free)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from experiments.workloads.decode.config import NAMED, ModelConfig, read_config
from levers.errors import BadParameter

SHIPPED = "shipped"
SHIPPED_FOLDER = Path(__file__).parent / "models" / "shipped"
PROMPTS_FILE = SHIPPED_FOLDER / "prompts.txt"
"""Held-out text from which the prompts of every model with a tokenizer are cut."""


def is_random(model: str) -> bool:
    """Whether the name stands for seeded random weights."""
    return model in NAMED


def model_folder(model: str) -> Path:
    """The folder of ``shipped`` or of a path."""
    return SHIPPED_FOLDER if model == SHIPPED else Path(model).expanduser()


def model_config(model: str) -> ModelConfig:
    """The configuration of a named model or folder.

    Raises:
        BadParameter: a folder that does not hold a usable model.
    """
    if is_random(model):
        return NAMED[model]
    if model.startswith("random-"):
        raise BadParameter(f"no model {model!r}", cure=f"random weights: {', '.join(NAMED)}")
    folder = model_folder(model)
    if not folder.is_dir():
        raise BadParameter(
            f"model folder {folder} does not exist",
            cure=f"name a Hugging Face folder, {SHIPPED}, or one of {', '.join(NAMED)}",
        )
    _need_files(folder)
    return read_config(folder)


def _need_files(folder: Path) -> None:
    if not any(folder.glob("*.safetensors")):
        pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        found = f"only pickled weights ({pickled[0].name})" if pickled else "no weights"
        raise BadParameter(
            f"model folder {folder} holds {found}",
            cure="convert the checkpoint to *.safetensors; pickle is never read",
        )
    if not (folder / "tokenizer.json").is_file():
        raise BadParameter(
            f"model folder {folder} lacks tokenizer.json",
            cure="copy the tokenizer.json of the same checkpoint into the folder",
        )


def model_digest(model: str) -> str:
    """SHA-256 (16 hex digits) over configuration, tokenizer and weights, or the random name.

    Held-out text of the folder's own counts as well, where it is not the shipped one: prompts are
    cut from it, so that what was compared on others is not found again.
    """
    hashed = hashlib.sha256()
    if is_random(model):
        hashed.update(model.encode())
        return hashed.hexdigest()[:16]
    *files, own = digested_files(model_folder(model))
    if own.is_file() and own.read_bytes() != PROMPTS_FILE.read_bytes():
        files.append(own)
    for path in files:
        hashed.update(path.name.encode())
        with path.open("rb") as file:
            hashed.update(hashlib.file_digest(file, "sha256").digest())
    return hashed.hexdigest()[:16]


def digested_files(folder: Path) -> tuple[Path, ...]:
    """The files that are the model, and its held-out text as the last one, there or not."""
    weights = sorted(folder.glob("*.safetensors"))
    return (
        folder / "config.json",
        folder / "tokenizer.json",
        *weights,
        folder / PROMPTS_FILE.name,
    )
