"""The model of the oracle ``transformers``: their classes, loaded by them, on the arms' weights."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any

import torch

from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.folder import is_random, model_folder
from experiments.workloads.decode.weights import shapes
from levers.errors import BadParameter

INIT_STD = 0.02
"""Standard deviation of random weights, as the decoder's own are drawn."""
CACHE_NAMES = ("cache", "past_key_values")
"""The keyword of the KV cache in ``forward``: its name since transformers 5.20, and before."""


def transformers_module() -> Any:
    """The package ``transformers``.

    Raises:
        BadParameter: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise BadParameter(
            f"the oracle transformers cannot be imported: {error}",
            cure="pip install 'transformers>=5.17', or name another --oracle",
        ) from error
    found.logging.disable_progress_bar()
    return found


def open_model(
    model: str, config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Any:
    """The causal language model with the arms' weights, held once.

    A folder is read by transformers itself, from its own config.json: nothing of this decoder's
    reading of it is shared. Random weights are drawn again from the same seed.

    Args:
        model: ``shipped``, a folder, or a random size.
        config: the model's dimensions.
        seed: of random weights.
        device: where the model lives.
        dtype: of weights and activations.
    """
    package = transformers_module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_random(model):
            found = _drawn(package, config, seed, device, dtype)
        else:
            found = package.AutoModelForCausalLM.from_pretrained(
                model_folder(model), dtype=dtype, attn_implementation="sdpa", local_files_only=True
            )
        return found.eval().requires_grad_(False).to(device)


def _drawn(
    package: Any, config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Any:
    """A model of random weights, each tensor drawn as the decoder's own are and then copied in."""
    values = config.to_json()
    theirs = package.AutoConfig.for_model(values.pop("model_type"), **values)
    with device:
        found = package.AutoModelForCausalLM.from_config(
            theirs, dtype=dtype, attn_implementation="sdpa"
        )
    generator = torch.Generator(device=device).manual_seed(seed)
    parameters = dict(found.named_parameters())
    with torch.no_grad():
        for name, shape in shapes(config).items():
            if len(shape) == 1:
                parameters[name].fill_(1.0)
                continue
            drawn = torch.empty(shape, device=device, dtype=dtype)
            parameters[name].copy_(drawn.normal_(0.0, INIT_STD, generator=generator))
    return found


def cache_keyword(model: Any) -> str:
    """The name by which this version's ``forward`` takes the cache.

    Raises:
        BadParameter: it has none that is known.
    """
    known = inspect.signature(model.forward).parameters
    found = next((name for name in CACHE_NAMES if name in known), None)
    if found is None:
        raise BadParameter(
            f"{type(model).__name__}.forward takes no KV cache",
            cure="use transformers 5.17 or newer",
        )
    return found


def weight_bytes(model: Any) -> int:
    """Bytes of all parameters, tied ones once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())
