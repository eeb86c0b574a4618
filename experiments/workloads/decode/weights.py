"""Weights of a decoder: from safetensors, from a seed, and back to a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.model import LayerWeights, Weights
from levers.errors import BadParameter

INIT_STD = 0.02
"""Standard deviation of random weights: ``initializer_range`` of the Qwen3 configurations."""


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor's Hugging Face name and shape."""
    c, d, i = config.hidden_size, config.head_dim, config.intermediate_size
    h, k = config.num_q_heads * d, config.num_kv_heads * d
    named: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, c)}
    for layer in range(config.num_layers):
        at = f"model.layers.{layer}"
        named |= {
            f"{at}.input_layernorm.weight": (c,),
            f"{at}.self_attn.q_proj.weight": (h, c),
            f"{at}.self_attn.k_proj.weight": (k, c),
            f"{at}.self_attn.v_proj.weight": (k, c),
            f"{at}.self_attn.o_proj.weight": (c, h),
            f"{at}.post_attention_layernorm.weight": (c,),
            f"{at}.mlp.gate_proj.weight": (i, c),
            f"{at}.mlp.up_proj.weight": (i, c),
            f"{at}.mlp.down_proj.weight": (c, i),
        }
        if config.qk_norm:
            named |= {f"{at}.self_attn.{x}_norm.weight": (d,) for x in ("q", "k")}
    named["model.norm.weight"] = (c,)
    if not config.tied_embeddings:
        named["lm_head.weight"] = (config.vocab_size, c)
    return named


def load_weights(
    config: ModelConfig, folder: Path, device: torch.device, dtype: torch.dtype
) -> Weights:
    """The weights of a Hugging Face folder's safetensors files.

    Raises:
        BadParameter: a file that is not safetensors, a tensor that is missing or has another shape.
    """
    wanted, found = shapes(config), {}
    for name, tensor in _stored_tensors(folder):
        if name in wanted:
            if tuple(tensor.shape) != wanted[name]:
                raise BadParameter(
                    f"model folder {folder}: {name} is {tuple(tensor.shape)}, "
                    f"config.json says {wanted[name]}",
                    cure="the weights and config.json belong to different models",
                )
            found[name] = tensor.to(device=device, dtype=dtype)
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise BadParameter(
            f"model folder {folder}: {len(missing)} tensors are missing, such as {missing[0]}",
            cure="copy every *.safetensors file of the checkpoint into the folder",
        )
    return assemble(config, found)


def _stored_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118 - not a mapping
                    yield name, stored.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise BadParameter(
                f"model folder {folder}: {path.name} cannot be read ({error})",
                cure="copy the file again; pickled checkpoints are never read",
            ) from error


def random_weights(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Seeded normal weights: for speed alone, their tokens mean nothing."""
    generator = torch.Generator(device=device).manual_seed(seed)
    named = {}
    for name, shape in shapes(config).items():
        if len(shape) == 1:
            named[name] = torch.ones(shape, device=device, dtype=dtype)
        else:
            named[name] = torch.empty(shape, device=device, dtype=dtype).normal_(
                0.0, INIT_STD, generator=generator
            )
    return assemble(config, named)


def assemble(config: ModelConfig, named: dict[str, Tensor]) -> Weights:
    """The decoder's weights from tensors under their Hugging Face names."""
    layers = []
    for index in range(config.num_layers):
        at = f"model.layers.{index}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        layers.append(
            LayerWeights(
                input_norm_C=named[f"{at}.input_layernorm.weight"],
                qkv_EC=torch.cat([named[f"{attention}.{x}_proj.weight"] for x in "qkv"]),
                q_norm_D=named.get(f"{attention}.q_norm.weight"),
                k_norm_D=named.get(f"{attention}.k_norm.weight"),
                o_CE=named[f"{attention}.o_proj.weight"],
                post_norm_C=named[f"{at}.post_attention_layernorm.weight"],
                gate_up_JC=torch.cat([named[f"{mlp}.{x}_proj.weight"] for x in ("gate", "up")]),
                down_CI=named[f"{mlp}.down_proj.weight"],
            )
        )
    embed = named["model.embed_tokens.weight"]
    head = embed if config.tied_embeddings else named["lm_head.weight"]
    return Weights(embed, tuple(layers), named["model.norm.weight"], head)


def disassemble(config: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    """Tensors under their Hugging Face names, the inverse of :func:`assemble`."""
    d = config.head_dim
    q, k = config.num_q_heads * d, config.num_kv_heads * d
    named = {"model.embed_tokens.weight": weights.embed_VC}
    for index, layer in enumerate(weights.layers):
        at = f"model.layers.{index}"
        named[f"{at}.input_layernorm.weight"] = layer.input_norm_C
        parts = torch.split(layer.qkv_EC, [q, k, k])
        named |= {f"{at}.self_attn.{x}_proj.weight": p for x, p in zip("qkv", parts, strict=True)}
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            named[f"{at}.self_attn.q_norm.weight"] = layer.q_norm_D
            named[f"{at}.self_attn.k_norm.weight"] = layer.k_norm_D
        named[f"{at}.self_attn.o_proj.weight"] = layer.o_CE
        named[f"{at}.post_attention_layernorm.weight"] = layer.post_norm_C
        gate, up = layer.gate_up_JC.chunk(2)
        named |= {f"{at}.mlp.gate_proj.weight": gate, f"{at}.mlp.up_proj.weight": up}
        named[f"{at}.mlp.down_proj.weight"] = layer.down_CI
    named["model.norm.weight"] = weights.final_norm_C
    if not config.tied_embeddings:
        named["lm_head.weight"] = weights.head_VC
    return named


def save_weights(config: ModelConfig, weights: Weights, path: Path) -> None:
    """Write the weights as bf16 safetensors."""
    named = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in disassemble(config, weights).items()
    }
    save_file(named, str(path), metadata={"format": "pt"})
