"""From what was asked for (``--size``, ``--set``) to a checked configuration, without torch."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from experiments.spec import DEEPSPEED, ZERO
from experiments.workloads.flow.config import AUTO, TORCH, FlowConfig
from experiments.workloads.flow.lengths import PROFILES
from experiments.workloads.flow.sizes import FROM_GRID, SIZES, SLAT
from levers.errors import BadParameter, UnknownName

CHOICES: dict[str, tuple[str, ...]] = {
    "profile": PROFILES,
    "optimizer": ("none", "adamw"),
    ZERO: (TORCH, DEEPSPEED),
    "attn": (AUTO, "varlen", "sdpa"),
    "matmul": (AUTO, "bf16", "fp32"),
}

LEAST: dict[str, int] = {"checkpointed": 0, "frozen": 0, "lengths_seed": 0, "warmup": 1}
"""Smallest legal value of the integer parameters; 1 where not listed."""

NUMBER = re.compile(r"[0-9]{1,18}")


def resolve(requested: Mapping[str, str], device_type: str, workload: str = SLAT) -> FlowConfig:
    """The defaults of the workload's size with what was asked for, checked.

    Raises:
        BadParameter: a value that is out of range or does not fit the others.
        UnknownName: no such parameter or size.
    """
    sizes = SIZES[workload]
    size = requested.get("size", "small")
    if size not in sizes:
        raise UnknownName(f"size of {workload}", size, sizes)
    known = _settable(sizes[size])
    changes: dict[str, Any] = {}
    for name, text in requested.items():
        if name not in known:
            raise UnknownName(f"parameter of {workload}", name, known)
        read = _integer if known[name] == "int" else _choice
        changes[name] = read(workload, name, text)
    config = _on_device(_filled(dataclasses.replace(sizes[size], **changes)), device_type)
    return _checked(workload, config, device_type)


def _settable(base: FlowConfig) -> dict[str, Any]:
    """The parameters that can be asked for, and their types' names."""
    fixed = FROM_GRID if base.dense else ()
    fields = dataclasses.fields(FlowConfig)
    return {field.name: field.type for field in fields if field.name not in fixed}


def _filled(config: FlowConfig) -> FlowConfig:
    """The lengths that follow from the grid of a dense batch."""
    tokens = config.grid**3
    return dataclasses.replace(config, tokens=tokens, cap=tokens) if config.dense else config


def _integer(workload: str, name: str, text: str) -> int:
    least = LEAST.get(name, 1)
    if not NUMBER.fullmatch(text) or int(text) < least:
        raise BadParameter(f"{workload}: {name}={text!r}", cure=f"use an integer from {least}")
    return int(text)


def _choice(workload: str, name: str, text: str) -> str:
    allowed = CHOICES.get(name, tuple(SIZES[workload]))
    if text not in allowed:
        raise BadParameter(f"{workload}: {name}={text!r}", cure=f"use {' | '.join(allowed)}")
    return text


def _on_device(config: FlowConfig, device_type: str) -> FlowConfig:
    """Resolve ``auto``: bf16 on CUDA, with variable-length attention for a packed batch."""
    cuda = device_type == "cuda"
    own = "varlen" if cuda and not config.dense else "sdpa"
    attn = own if config.attn == AUTO else config.attn
    matmul = ("bf16" if cuda else "fp32") if config.matmul == AUTO else config.matmul
    return dataclasses.replace(config, attn=attn, matmul=matmul)


def _checked(workload: str, config: FlowConfig, device_type: str) -> FlowConfig:
    voxels = config.grid**3
    faults = {
        f"channels={config.channels} is no multiple of heads={config.heads}": config.channels
        % config.heads,
        f"head dim {config.head_dim} is odd or below 6 (3 axes of RoPE, in pairs)": config.head_dim
        < 6
        or config.head_dim % 2,
        f"checkpointed={config.checkpointed} of depth={config.depth}": config.checkpointed
        > config.depth,
        f"frozen={config.frozen} of depth={config.depth} leaves nothing to train": config.frozen
        >= config.depth,
        "attn=varlen needs CUDA": config.attn == "varlen" and device_type != "cuda",
        "attn=varlen needs matmul=bf16": config.attn == "varlen" and config.matmul != "bf16",
        f"cap={config.cap} is above the {voxels} voxels of a {config.grid}^3 grid": config.cap
        > voxels,
    }
    for fault, found in faults.items():
        if found:
            raise BadParameter(f"{workload}: {fault}", cure="change one of them with --set")
    config.lengths  # noqa: B018 - raises where profile and batch do not fit
    return config
