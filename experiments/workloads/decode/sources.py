"""Where the weights of a decoder come from: the safetensors files of a folder, or a seed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from experiments.workloads.decode.config import ModelConfig
from levers.errors import BadParameter

INIT_STD = 0.02
"""Standard deviation of random weights: ``initializer_range`` of the Qwen3 configurations."""
INDEX = "model.safetensors.index.json"
"""The file that says which shard holds which tensor (Hugging Face's layout)."""


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


class Source(Protocol):
    """Tensors by their Hugging Face names, read one by one; each on its device, in its dtype."""

    def reader(self) -> contextlib.AbstractContextManager[Callable[[str], Tensor]]:
        """A function that reads one tensor; files stay open while it is in use."""


class FolderSource:
    """The safetensors files of a Hugging Face folder, whole or in shards.

    Names and shapes are read from the files' headers at once, the tensors when they are asked for.
    """

    def __init__(
        self, config: ModelConfig, folder: Path, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._folder, self._device, self._dtype = folder, device, dtype
        self._file_of = self._checked(shapes(config))

    @contextlib.contextmanager
    def reader(self) -> Iterator[Callable[[str], Tensor]]:
        """Read from the files, each opened once."""
        with contextlib.ExitStack() as stack:
            opened: dict[Path, Any] = {}

            def read(name: str) -> Tensor:
                path = self._file_of[name]
                with _named_faults(self._folder, path):
                    if path not in opened:
                        opened[path] = stack.enter_context(safe_open(str(path), framework="pt"))
                    tensor: Tensor = opened[path].get_tensor(name)
                return tensor.to(device=self._device, dtype=self._dtype)

            yield read

    def _checked(self, wanted: dict[str, tuple[int, ...]]) -> dict[str, Path]:
        """The file of each wanted tensor.

        Raises:
            BadParameter: a file that is not safetensors, a tensor that is missing or has another
                shape.
        """
        found: dict[str, Path] = {}
        for path in _files(self._folder):
            with _named_faults(self._folder, path), safe_open(str(path), framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118 - not a mapping
                    if name in wanted:
                        self._check_shape(name, stored.get_slice(name).get_shape(), wanted[name])
                        found[name] = path
        missing = sorted(set(wanted) - set(found))
        if missing:
            raise BadParameter(
                f"model folder {self._folder}: {len(missing)} tensors are missing, "
                f"such as {missing[0]}",
                cure="copy every *.safetensors file of the checkpoint into the folder",
            )
        return found

    def _check_shape(self, name: str, found: list[int], wanted: tuple[int, ...]) -> None:
        if tuple(found) != wanted:
            raise BadParameter(
                f"model folder {self._folder}: {name} is {tuple(found)}, config.json says {wanted}",
                cure="the weights and config.json belong to different models",
            )


def _files(folder: Path) -> list[Path]:
    """The weight files: those that the index names, or every safetensors file without an index.

    Raises:
        BadParameter: an index that cannot be read, or that names a shard which is not there.
    """
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        shards = sorted({str(name) for name in named})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadParameter(
            f"model folder {folder}: {INDEX} cannot be read ({error})", cure="copy it again"
        ) from error
    absent = [name for name in shards if not (folder / name).is_file()]
    if absent:
        raise BadParameter(
            f"model folder {folder}: {len(absent)} of {len(shards)} shards are missing, "
            f"such as {absent[0]}",
            cure="copy every *.safetensors file of the checkpoint into the folder",
        )
    return [folder / name for name in shards]


@contextlib.contextmanager
def _named_faults(folder: Path, path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise BadParameter(
            f"model folder {folder}: {path.name} cannot be read ({error})",
            cure="copy the file again; pickled checkpoints are never read",
        ) from error


class RandomSource:
    """Seeded normal weights, drawn in the order in which they are read, norms at 1."""

    def __init__(
        self, config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._shapes, self._seed = shapes(config), seed
        self._device, self._dtype = device, dtype

    @contextlib.contextmanager
    def reader(self) -> Iterator[Callable[[str], Tensor]]:
        """Draw afresh from the seed."""
        generator = torch.Generator(device=self._device).manual_seed(self._seed)

        def read(name: str) -> Tensor:
            shape = self._shapes[name]
            if len(shape) == 1:
                return torch.ones(shape, device=self._device, dtype=self._dtype)
            empty = torch.empty(shape, device=self._device, dtype=self._dtype)
            return empty.normal_(0.0, INIT_STD, generator=generator)

        yield read
