"""Builds the engine that a workload's parameters describe: sites, weights, cache, attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from experiments.values import Scalar
from experiments.workloads.decode.attention import SdpaAttention, SplitAttention, StepAttention
from experiments.workloads.decode.caches import ContiguousCache, PagedCache
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.engine import DecodeEngine
from experiments.workloads.decode.folder import is_random, model_folder
from experiments.workloads.decode.loaded import confirm
from experiments.workloads.decode.sites import DecodeSites
from experiments.workloads.decode.sources import FolderSource, RandomSource, Source
from experiments.workloads.decode.weights import LazyDecoder, LoadedDecoder, in_double
from levers.errors import BadParameter
from levers.kernels.split_kv import Backend

SDPA_ROWS = 8
"""The oracle's rows are a multiple of this: its kernels want an aligned mask."""

Parameters = Mapping[str, Scalar]


def build_engine(
    parameters: Parameters,
    config: ModelConfig,
    device: torch.device,
    seed: int,
    oracle: str,
    slots: int,
) -> DecodeEngine:
    """The engine with its caches; weights are loaded at their first use, headers checked now.

    Args:
        parameters: as the workload resolved them.
        config: of the model.
        device: where everything lives; bf16 on CUDA, fp32 on a CPU.
        seed: of random weights.
        oracle: empty, or ``sdpa``.
        slots: sequences of the largest step.

    Raises:
        BadParameter: weights that do not fit the configuration, or an unknown oracle.
    """
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    backend: Backend = "triton" if parameters["attn"] == "triton" else "torch"
    sites = DecodeSites(backend, graph=parameters["graph"] == "on")
    source = _source(str(parameters["model"]), config, seed, device, dtype)
    capacity = _number(parameters, "prompt_tokens") + _number(parameters, "output_tokens")
    attention: StepAttention
    if oracle == "sdpa":
        rows = -(-capacity // SDPA_ROWS) * SDPA_ROWS
        attention = SdpaAttention(config, ContiguousCache(config, slots, rows, device, dtype))
    elif oracle:
        raise BadParameter(f"decode has no implementation oracle:{oracle}", cure="use sdpa")
    else:
        attention = SplitAttention(
            config,
            _cache(parameters, config, slots, capacity, device, dtype),
            sites,
            _number(parameters, "kv_block"),
            capacity,
            _number(parameters, "sm_count"),
        )
    decoder = LazyDecoder(config, source, sites, device, dtype, partial(confirm, parameters))
    return DecodeEngine(decoder, attention, slots, capacity)


def engine_for_prompts(engine: DecodeEngine, tokens: int) -> DecodeEngine:
    """An engine with the same weights and sites and one slot for prompts of so many tokens.

    It only prefills, so that the kind of its cache changes nothing; contiguous rows are filled as
    fast as pages.
    """
    cache = ContiguousCache(engine.config, 1, tokens, engine.device, engine.dtype)
    return DecodeEngine(engine.decoder, SdpaAttention(engine.config, cache), 1, tokens)


def engine_in_double(engine: DecodeEngine, slots: int) -> DecodeEngine:
    """An engine in fp64 with the weights that ``engine`` has, as they are stored there.

    Every operation has its original form, whatever lever stands at the sites of ``engine``: what
    bf16 or fp32 arithmetic is held against.
    """
    weights = in_double(engine.weights)
    decoder = LoadedDecoder(engine.config, weights, DecodeSites())
    cache = ContiguousCache(
        engine.config, slots, engine.capacity_tokens, engine.device, weights.dtype
    )
    attention = SdpaAttention(engine.config, cache)
    return DecodeEngine(decoder, attention, slots, engine.capacity_tokens)


def _number(parameters: Parameters, name: str) -> int:
    return int(parameters[name] or 0)


def _source(
    model: str, config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Source:
    if is_random(model):
        return RandomSource(config, seed, device, dtype)
    return FolderSource(config, model_folder(model), device, dtype)


def _cache(
    parameters: Parameters,
    config: ModelConfig,
    slots: int,
    capacity: int,
    device: torch.device,
    dtype: torch.dtype,
) -> PagedCache | ContiguousCache:
    """The cache that the parameters name; a contiguous slot holds whole KV blocks."""
    if parameters["kv"] == "contiguous":
        block = _number(parameters, "kv_block")
        rows = -(-capacity // block) * block
        return ContiguousCache(config, slots, rows, device, dtype)
    page = _number(parameters, "page_size")
    paged = PagedCache(config, slots, capacity, page, device, dtype)
    for slot in range(slots):
        paged.admit(slot)
    return paged
