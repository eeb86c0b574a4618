"""Weights of a decoder: put together from named tensors, matrix by matrix, and taken apart again.

Each matrix goes through a *keep* callable while it is loaded (the site ``decode.weights``), so that
a form of four bits is made, and the bf16 matrix freed, before the next one is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.model import Decoder, LayerWeights, Matrix, Weights
from experiments.workloads.decode.names import WEIGHTS
from experiments.workloads.decode.original import keep as keep_plain
from experiments.workloads.decode.sites import DecodeSites
from experiments.workloads.decode.sources import FolderSource, RandomSource, Source
from experiments.workloads.decode.sources import shapes as shapes

Keep = Callable[[str, Tensor], Matrix]
"""``keep(name, matrix)``: the form in which it is stored; name: qkv, o, gate_up, down or head."""


class LazyDecoder:
    """A decoder whose weights are put together at their first use.

    They are put together again after the callable at ``decode.weights`` changed, which happens
    while a lever is engaged and when it is restored; what was there is freed first.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: Source,
        sites: DecodeSites,
        device: torch.device,
        dtype: torch.dtype,
        confirm: Callable[[], str] = str,
    ) -> None:
        """Load nothing yet; ``confirm`` gives the digest of what was loaded each time."""
        self.config, self.sites, self.device, self.dtype = config, sites, device, dtype
        self._source, self._confirm = source, confirm
        self._site = sites.by_name[WEIGHTS]
        self._kept_by: Callable[..., Matrix] | None = None
        self._decoder: Decoder | None = None
        self.loads = 0
        self.digest = ""

    def get(self) -> Decoder:
        """The decoder in the form that the site gives its matrices."""
        if self._decoder is None or self._kept_by is not self._site.launch:
            self._decoder = None
            self._kept_by = self._site.launch
            self._decoder = self._made()
            self.digest = self._confirm()
            self.loads += 1
        return self._decoder

    def _made(self) -> Decoder:
        """Plain tensors, also where the first use is inside an inference mode."""
        with torch.inference_mode(False), torch.no_grad():
            weights = put_together(self.config, self._source, self.sites.weights)
        return Decoder(self.config, weights, self.sites)


class LoadedDecoder:
    """A decoder of weights that are in memory, with the interface of :class:`LazyDecoder`."""

    loads = 1
    digest = ""

    def __init__(self, config: ModelConfig, weights: Weights, sites: DecodeSites) -> None:
        self.config, self.sites = config, sites
        self.device, self.dtype = weights.device, weights.dtype
        self._decoder = Decoder(config, weights, sites)

    def get(self) -> Decoder:
        """The decoder."""
        return self._decoder


def in_double(weights: Weights) -> Weights:
    """The very same weights in fp64; a matrix in a form of its own is written out."""

    def of(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.double()

    def matrix(stored: Matrix) -> Tensor:
        plain = stored if isinstance(stored, Tensor) else stored.dequantise(torch.float32)
        return plain.double()

    layers = (
        replace(
            layer,
            input_norm_C=layer.input_norm_C.double(),
            qkv_EC=matrix(layer.qkv_EC),
            q_norm_D=of(layer.q_norm_D),
            k_norm_D=of(layer.k_norm_D),
            o_CE=matrix(layer.o_CE),
            post_norm_C=layer.post_norm_C.double(),
            gate_up_JC=matrix(layer.gate_up_JC),
            down_CI=matrix(layer.down_CI),
        )
        for layer in weights.layers
    )
    return Weights(
        weights.embed_VC.double(),
        tuple(layers),
        weights.final_norm_C.double(),
        matrix(weights.head_VC),
    )


def put_together(config: ModelConfig, source: Source, keep: Keep) -> Weights:
    """The weights of a source, read in the order of the decoder and stored as ``keep`` says."""
    with source.reader() as read:
        embed_VC = read("model.embed_tokens.weight")
        layers = tuple(_layer(config, index, read, keep) for index in range(config.num_layers))
        final_norm_C = read("model.norm.weight")
        head = embed_VC if config.tied_embeddings else read("lm_head.weight")
        return Weights(embed_VC, layers, final_norm_C, keep("head", head))


def _layer(
    config: ModelConfig, index: int, read: Callable[[str], Tensor], keep: Keep
) -> LayerWeights:
    at = f"model.layers.{index}"
    attention, mlp = f"{at}.self_attn", f"{at}.mlp"
    norms = [read(f"{attention}.{x}_norm.weight") for x in "qk"] if config.qk_norm else [None, None]

    def joined(where: str, parts: tuple[str, ...]) -> Tensor:
        return torch.cat([read(f"{where}.{part}_proj.weight") for part in parts])

    return LayerWeights(
        input_norm_C=read(f"{at}.input_layernorm.weight"),
        qkv_EC=keep("qkv", joined(attention, ("q", "k", "v"))),
        q_norm_D=norms[0],
        k_norm_D=norms[1],
        o_CE=keep("o", read(f"{attention}.o_proj.weight")),
        post_norm_C=read(f"{at}.post_attention_layernorm.weight"),
        gate_up_JC=keep("gate_up", joined(mlp, ("gate", "up"))),
        down_CI=keep("down", read(f"{mlp}.down_proj.weight")),
    )


def load_weights(
    config: ModelConfig, folder: Path, device: torch.device, dtype: torch.dtype
) -> Weights:
    """The plain weights of a Hugging Face folder's safetensors files.

    Raises:
        BadParameter: a file that is not safetensors, a tensor that is missing or has another shape.
    """
    return put_together(config, FolderSource(config, folder, device, dtype), keep_plain)


def random_weights(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Seeded normal weights: for speed alone, their tokens mean nothing."""
    return put_together(config, RandomSource(config, seed, device, dtype), keep_plain)


def assemble(config: ModelConfig, named: Mapping[str, Tensor]) -> Weights:
    """The plain weights from tensors under their Hugging Face names."""
    return put_together(config, NamedSource(named), keep_plain)


class NamedSource:
    """Tensors that are in memory already."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self._named = named

    @contextlib.contextmanager
    def reader(self) -> Iterator[Callable[[str], Tensor]]:
        """Hand out the tensors themselves."""
        yield self._named.__getitem__


def disassemble(config: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    """Tensors under their Hugging Face names, the inverse of :func:`assemble`."""
    d = config.head_dim
    q, k = config.num_q_heads * d, config.num_kv_heads * d
    named = {"model.embed_tokens.weight": weights.embed_VC}
    for index, layer in enumerate(weights.layers):
        at = f"model.layers.{index}"
        named[f"{at}.input_layernorm.weight"] = layer.input_norm_C
        parts = torch.split(_plain(layer.qkv_EC), [q, k, k])
        named |= {f"{at}.self_attn.{x}_proj.weight": p for x, p in zip("qkv", parts, strict=True)}
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            named[f"{at}.self_attn.q_norm.weight"] = layer.q_norm_D
            named[f"{at}.self_attn.k_norm.weight"] = layer.k_norm_D
        named[f"{at}.self_attn.o_proj.weight"] = _plain(layer.o_CE)
        named[f"{at}.post_attention_layernorm.weight"] = layer.post_norm_C
        gate, up = _plain(layer.gate_up_JC).chunk(2)
        named |= {f"{at}.mlp.gate_proj.weight": gate, f"{at}.mlp.up_proj.weight": up}
        named[f"{at}.mlp.down_proj.weight"] = _plain(layer.down_CI)
    named["model.norm.weight"] = weights.final_norm_C
    if not config.tied_embeddings:
        named["lm_head.weight"] = _plain(weights.head_VC)
    return named


def _plain(matrix: Matrix) -> Tensor:
    if not isinstance(matrix, Tensor):
        raise TypeError(f"{type(matrix).__name__} is no tensor: only plain weights are taken apart")
    return matrix


def save_weights(config: ModelConfig, weights: Weights, path: Path) -> None:
    """Write the weights as bf16 safetensors."""
    named = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in disassemble(config, weights).items()
    }
    save_file(named, str(path), metadata={"format": "pt"})
