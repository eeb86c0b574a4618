"""The shape of a Qwen3 or Llama decoder, read from a Hugging Face ``config.json`` (torch-free)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levers.errors import BadParameter

ARCHITECTURES = {"qwen3": True, "llama": False}
"""Model type to whether queries and keys are normalised per head."""
PARTIAL = "partial_rotary_factor"
LLAMA3 = "llama3"
"""The one kind of rotary scaling that is computed."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary frequencies stretched for long contexts, as Llama 3.1 does (type ``llama3``).

    Wavelengths above ``original_positions / low_freq_factor`` are stretched by ``factor``, those
    below ``original_positions / high_freq_factor`` are kept, and those between are blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Dimensions of a decoder with grouped-query attention, rotary positions and SwiGLU.

    Attributes:
        qk_norm: RMS norm over each query and key head (Qwen3), absent in Llama.
        eos_token_ids: tokens at which a stream stops; empty where the model names none.
        rope_scaling: how rotary frequencies are stretched; None leaves them.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    tied_embeddings: bool = True
    qk_norm: bool = True
    max_positions: int = 4096
    eos_token_ids: tuple[int, ...] = ()
    rope_scaling: RopeScaling | None = None

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def parameters(self) -> int:
        """Number of weights."""
        c, d = self.hidden_size, self.head_dim
        attention = c * d * (2 * self.num_q_heads + 2 * self.num_kv_heads)
        norms = 2 * c + (2 * d if self.qk_norm else 0)
        layer = attention + 3 * c * self.intermediate_size + norms
        heads = self.vocab_size * c * (1 if self.tied_embeddings else 2)
        return self.num_layers * layer + heads + c

    @property
    def weight_bytes_read(self) -> int:
        """Bytes of bf16 weights that one decode step must read (the embedding rows apart)."""
        unread = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        return 2 * (self.parameters - unread)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in bf16, all layers together."""
        return 2 * 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def to_json(self) -> dict[str, Any]:
        """The ``config.json`` of this model, as transformers reads it."""
        names = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
        scaling = {} if self.rope_scaling is None else {"rope_scaling": _stored(self.rope_scaling)}
        return scaling | {
            "architectures": [names[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_q_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tied_embeddings,
            "max_position_embeddings": self.max_positions,
            "eos_token_id": list(self.eos_token_ids),
            "hidden_act": "silu",
            "attention_bias": False,
            "torch_dtype": "bfloat16",
        }


NAMED = {
    "random-0.6b": ModelConfig(
        "qwen3", 151936, 1024, 3072, 28, 16, 8, 128, 1e6, max_positions=40960
    ),
    "random-4b": ModelConfig("qwen3", 151936, 2560, 9728, 36, 32, 8, 128, 1e6, max_positions=40960),
}
"""Dimensions of Qwen3-0.6B and Qwen3-4B (their published config.json), for random weights."""


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a Hugging Face model folder.

    Raises:
        BadParameter: no readable config.json, or a model that this decoder does not compute.
    """
    path = folder / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadParameter(
            f"model folder {folder}: config.json cannot be read ({error.strerror})",
            cure="name a Hugging Face folder with config.json, *.safetensors and tokenizer.json",
        ) from error
    except ValueError as error:
        raise BadParameter(
            f"model folder {folder}: config.json is not JSON ({error})", cure="download it again"
        ) from error
    if not isinstance(data, dict):
        raise BadParameter(f"{path} holds no JSON object", cure="download it again")
    return config_from(data, str(path))


def config_from(data: Mapping[str, Any], where: str) -> ModelConfig:
    """The configuration in the mapping of a ``config.json``; ``where`` names it in messages.

    Raises:
        BadParameter: a missing or odd entry, or a feature that this decoder does not compute.
    """
    kind = str(data.get("model_type"))
    if kind not in ARCHITECTURES:
        raise BadParameter(
            f"{where}: model_type {kind!r} is not one that this decoder computes",
            cure=f"use a model of type {' or '.join(ARCHITECTURES)}",
        )
    _refuse_features(data, where)
    heads = _count(data, "num_attention_heads", where)
    kv_heads = int(data.get("num_key_value_heads") or heads)
    hidden = _count(data, "hidden_size", where)
    if kv_heads < 1 or heads % kv_heads:
        raise BadParameter(
            f"{where}: {heads} query heads do not divide into {kv_heads} KV heads",
            cure="check num_attention_heads and num_key_value_heads",
        )
    head_dim = int(data.get("head_dim") or hidden // heads)
    if head_dim < 2 or head_dim % 2:
        raise BadParameter(f"{where}: head_dim {head_dim} is not even", cure="check head_dim")
    return ModelConfig(
        model_type=kind,
        vocab_size=_count(data, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=_count(data, "intermediate_size", where),
        num_layers=_count(data, "num_hidden_layers", where),
        num_q_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=float(_rope(data).get("rope_theta", data.get("rope_theta", 10000.0))),
        rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
        tied_embeddings=bool(data.get("tie_word_embeddings", False)),
        qk_norm=ARCHITECTURES[kind],
        max_positions=int(data.get("max_position_embeddings", 4096)),
        eos_token_ids=_eos(data),
        rope_scaling=_rope_scaling(data, where),
    )


def _count(data: Mapping[str, Any], key: str, where: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or value < 1:
        raise BadParameter(f"{where}: {key} is {value!r}", cure="it must be a positive integer")
    return value


def _refuse_features(data: Mapping[str, Any], where: str) -> None:
    """Raise for what would be computed wrongly if it were ignored."""
    wrong = {
        "attention_bias": bool(data.get("attention_bias")),
        "mlp_bias": bool(data.get("mlp_bias")),
        "use_sliding_window": bool(data.get("use_sliding_window")),
        "hidden_act": data.get("hidden_act", "silu") != "silu",
        "quantization_config": bool(data.get("quantization_config")),
        PARTIAL: _partial_rotary(data) not in (None, 1),
    }
    for key, present in wrong.items():
        if present:
            value = data.get(key) if key != PARTIAL else _partial_rotary(data)
            raise BadParameter(
                f"{where}: {key} = {value!r} is not computed by this decoder",
                cure="use a plain Qwen3 or Llama checkpoint",
            )


def _partial_rotary(data: Mapping[str, Any]) -> Any:
    return _rope(data).get(PARTIAL, data.get(PARTIAL))


def _rope(data: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary entries: ``rope_scaling``, and ``rope_parameters`` of transformers 5."""
    return {**(data.get("rope_scaling") or {}), **(data.get("rope_parameters") or {})}


def _rope_scaling(data: Mapping[str, Any], where: str) -> RopeScaling | None:
    rope = _rope(data)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != LLAMA3:
        raise BadParameter(
            f"{where}: rotary scaling {kind!r} is not computed by this decoder",
            cure=f"use a checkpoint with plain rotary positions or scaling of type {LLAMA3}",
        )
    try:
        found = RopeScaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_positions=int(rope["original_max_position_embeddings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadParameter(
            f"{where}: rotary scaling {kind} lacks or garbles {error}",
            cure="copy config.json of the same checkpoint again",
        ) from error
    if not (found.factor >= 1.0 and 0.0 < found.low_freq_factor < found.high_freq_factor):
        raise BadParameter(
            f"{where}: rotary scaling {kind} has factor {found.factor:g} and frequency factors "
            f"{found.low_freq_factor:g}, {found.high_freq_factor:g}",
            cure="factor must be at least 1, the low frequency factor below the high one",
        )
    return found


def _stored(scaling: RopeScaling) -> dict[str, Any]:
    return {
        "rope_type": LLAMA3,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_positions,
    }


def _eos(data: Mapping[str, Any]) -> tuple[int, ...]:
    found = data.get("eos_token_id")
    if found is None:
        return ()
    return tuple(int(i) for i in found) if isinstance(found, list) else (int(found),)
