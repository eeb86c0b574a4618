"""How tokens are decoded with another model than the timed one (torch-free)."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.folder import SHIPPED, is_random, model_config, model_folder
from experiments.workloads.decode.parameters import defaults
from levers.errors import BadParameter


def token_settings(
    parameters: Mapping[str, Scalar], model: str, device: DeviceFacts
) -> dict[str, str]:
    """What to ask of the workload for these decodes: the comparison's own, with the model's.

    A default that depends on the model (``kv_block`` on CUDA) is that of this one. Lengths are cut
    to its context. Its quality is at hand where a lever asks for it, and costs nothing here, since
    only tokens are decoded.

    Raises:
        BadParameter: there is no such model, its weights are random, or its text is too short.
    """
    _refuse(model)
    config = model_config(model)
    usual = defaults(device, model_config(str(parameters["model"])))
    own = {
        name: str(parameters[name])
        for name, value in usual.items()
        if parameters.get(name, value) != value
    }
    lengths = _lengths(parameters, config)
    _check_prompts(model, config, lengths["prompt_tokens"])
    named = {name: str(value) for name, value in lengths.items()}
    return {**own, **named, "quality": "on", "model": model}


def _refuse(model: str) -> None:
    cure = f"name {SHIPPED}, or a Hugging Face folder of trained weights"
    if is_random(model) or model.startswith("random-"):
        raise BadParameter(
            f"{model} has random weights: its tokens carry no claim, whoever decodes them",
            cure=cure,
        )
    if not model or not model_folder(model).is_dir():
        raise BadParameter(f"no model {model!r} to decode tokens with", cure=cure)


def _lengths(parameters: Mapping[str, Scalar], config: ModelConfig) -> dict[str, int]:
    """The lengths of the comparison, as far as the model's context allows them."""
    names = ("prompt_tokens", "output_tokens", "ttft_tokens", "round_steps")
    asked = {name: int(parameters[name] or 0) for name in names}
    output = min(asked["output_tokens"], config.max_positions // 2)
    prompt = min(asked["prompt_tokens"], config.max_positions - output)
    return {
        "prompt_tokens": prompt,
        "output_tokens": output,
        "ttft_tokens": min(asked["ttft_tokens"], prompt),
        "round_steps": min(asked["round_steps"], output - 1),
    }


def _check_prompts(model: str, config: ModelConfig, longest: int) -> None:
    """Cut the prompts once, before anything is measured.

    Raises:
        BadParameter: the text is too short for prompts of that length, or is another tokenizer's.
    """
    from experiments.workloads.decode.prompts import prompt_set

    prompt_set(model, config, longest)
