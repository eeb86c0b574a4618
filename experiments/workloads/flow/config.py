"""Parameters of the workload: sizes, defaults and checks, without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.values import Scalar, digest_of
from experiments.workloads.flow.flop import StepFlop, step_flop
from experiments.workloads.flow.lengths import PROFILES, sample_lengths
from levers.errors import BadParameter, UnknownName

AUTO = "auto"

CHOICES: dict[str, tuple[str, ...]] = {
    "profile": PROFILES,
    "optimizer": ("none", "adamw"),
    "attn": (AUTO, "varlen", "sdpa"),
    "matmul": (AUTO, "bf16", "fp32"),
}

LEAST: dict[str, int] = {"checkpointed": 0, "frozen": 0, "lengths_seed": 0, "warmup": 1}
"""Smallest legal value of the integer parameters; 1 where not listed."""


@dataclass(frozen=True, slots=True)
class SlatConfig:
    """Every parameter of the workload, resolved.

    Attributes:
        size: name of the set of defaults.
        channels, heads, depth, mlp: width C, heads (head dim C / heads), blocks, MLP hidden width.
        cond_channels, cond_tokens: width and number of condition tokens of each sample.
        latent: input and output channels of a voxel.
        bs, profile, tokens, cap, lengths_seed: the batch (:mod:`.lengths`).
        checkpointed: leading blocks that are recomputed in the backward. Pinned: upstream's elastic
            controller moves it during a run, which would change the work between the arms.
        frozen: leading blocks (and the shared modulation) that are not trained.
        optimizer: ``adamw`` adds the fused update to the step.
        attn: ``varlen`` (torch's variable-length flash attention) or ``sdpa`` for each sample.
        matmul: dtype of the matrix products. ``bf16`` is the published autocast; ``fp32`` keeps the
            residual stream, the modulation and all their gradients in bf16, and only multiplies in
            fp32, for CPUs that multiply bf16 forty times slower than fp32.
        steps: timed steps in a sample.
        warmup: untimed steps before them.
        threads: CPU threads of the measured process.
    """

    size: str
    channels: int
    heads: int
    depth: int
    mlp: int
    cond_channels: int
    cond_tokens: int
    latent: int
    bs: int
    profile: str
    tokens: int
    cap: int
    lengths_seed: int
    checkpointed: int
    frozen: int
    optimizer: str
    attn: str
    matmul: str
    steps: int
    warmup: int
    threads: int

    @property
    def head_dim(self) -> int:
        """Channels of one head."""
        return self.channels // self.heads

    @property
    def lengths(self) -> tuple[int, ...]:
        """Token counts of the batch's samples."""
        return sample_lengths(self.profile, self.bs, self.tokens, self.cap, self.lengths_seed)

    @property
    def flop(self) -> StepFlop:
        """FLOPs of one step."""
        return step_flop(
            self.lengths,
            self.cond_tokens,
            channels=self.channels,
            mlp=self.mlp,
            cond_channels=self.cond_channels,
            depth=self.depth,
            frozen=self.frozen,
        )

    @property
    def parameter_count(self) -> int:
        """Weights of the blocks, biases and embeddings left out (0.3 % at 1.3 B)."""
        c = self.channels
        block = 6 * c * c + 2 * c * self.mlp + 2 * self.cond_channels * c
        return self.depth * block + 6 * c * c

    def scalars(self) -> dict[str, Scalar]:
        """As parameters of a record, with the digest of what the model is."""
        values: dict[str, Scalar] = dataclasses.asdict(self)
        shape = ("channels", "heads", "depth", "mlp", "cond_channels", "latent")
        values["model_digest"] = digest_of(",".join(f"{name}={values[name]}" for name in shape))
        return values

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> SlatConfig:
        """From a record's parameters."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: parameters[name] for name in names})


XL = SlatConfig(
    size="xl",
    channels=1536,
    heads=12,
    depth=30,
    mlp=8192,
    cond_channels=1024,
    cond_tokens=2056,
    latent=32,
    bs=8,
    profile="measured",
    tokens=2222,
    cap=8192,
    lengths_seed=0,
    checkpointed=0,
    frozen=0,
    optimizer="none",
    attn=AUTO,
    matmul=AUTO,
    steps=7,
    warmup=3,
    threads=1,
)
"""TRELLIS.2's 1.3 B flow model at 512, and the batch that was measured on an H200."""

SMALL = dataclasses.replace(
    XL,
    size="small",
    channels=64,
    heads=2,
    depth=4,
    mlp=64,
    cond_channels=32,
    cond_tokens=16,
    bs=32,
    profile="lognormal",
    tokens=128,
    cap=512,
    steps=9,
    warmup=3,
)
"""The same blocks, narrow, so that a step takes a fraction of a second on one CPU thread."""

SIZES: dict[str, SlatConfig] = {"small": SMALL, "xl": XL}


def resolve(requested: Mapping[str, str], device_type: str) -> SlatConfig:
    """The size's defaults with what was asked for, checked.

    Raises:
        BadParameter: a value that is out of range or does not fit the others.
        UnknownName: no such parameter or size.
    """
    size = requested.get("size", "small")
    if size not in SIZES:
        raise UnknownName("size of slat_flow", size, SIZES)
    base = SIZES[size]
    known = {field.name: field.type for field in dataclasses.fields(SlatConfig)}
    changes: dict[str, Any] = {}
    for name, text in requested.items():
        if name not in known:
            raise UnknownName("parameter of slat_flow", name, known)
        changes[name] = _integer(name, text) if known[name] == "int" else _choice(name, text)
    return _checked(_on_device(dataclasses.replace(base, **changes), device_type), device_type)


def _integer(name: str, text: str) -> int:
    least = LEAST.get(name, 1)
    if not text.isdigit() or int(text) < least:
        raise BadParameter(f"slat_flow: {name}={text!r}", cure=f"use an integer from {least}")
    return int(text)


def _choice(name: str, text: str) -> str:
    allowed = CHOICES.get(name, tuple(SIZES))
    if text not in allowed:
        raise BadParameter(f"slat_flow: {name}={text!r}", cure=f"use {' | '.join(allowed)}")
    return text


def _on_device(config: SlatConfig, device_type: str) -> SlatConfig:
    """Resolve ``auto``: bf16 and variable-length attention on CUDA, fp32 and SDPA on a CPU."""
    cuda = device_type == "cuda"
    attn = ("varlen" if cuda else "sdpa") if config.attn == AUTO else config.attn
    matmul = ("bf16" if cuda else "fp32") if config.matmul == AUTO else config.matmul
    return dataclasses.replace(config, attn=attn, matmul=matmul)


def _checked(config: SlatConfig, device_type: str) -> SlatConfig:
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
        f"cap={config.cap} is above the 32768 voxels of a 32^3 grid": config.cap > 32**3,
    }
    for fault, found in faults.items():
        if found:
            raise BadParameter(f"slat_flow: {fault}", cure="change one of them with --set")
    config.lengths  # noqa: B018 - raises where profile and batch do not fit
    return config
