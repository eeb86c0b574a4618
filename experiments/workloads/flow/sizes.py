"""The sets of defaults of both flow workloads: 1.3 B as published, and a small form for a CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.workloads.flow.config import AUTO, FlowConfig
from experiments.workloads.flow.lengths import DENSE

SLAT = "slat_flow"
SS = "ss_flow"

SLAT_XL = FlowConfig(
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
"""TRELLIS.2's 1.3 B packed flow model at 512, and the batch that was measured on an H200."""

SMALL: dict[str, Any] = {
    "size": "small",
    "channels": 64,
    "heads": 2,
    "depth": 4,
    "mlp": 64,
    "cond_channels": 32,
    "cond_tokens": 16,
    "steps": 9,
}
"""The same blocks, narrow, so that a step takes a fraction of a second on one CPU thread."""

SLAT_SMALL = dataclasses.replace(SLAT_XL, **SMALL, bs=32, profile="lognormal", tokens=128, cap=512)

SS_XL = dataclasses.replace(
    SLAT_XL, cond_tokens=1029, latent=8, profile=DENSE, grid=16, tokens=16**3, cap=16**3
)
"""TRELLIS.2's 1.3 B sparse-structure flow: the 4,096 tokens of a 16^3 grid in every sample; DINOv3
ViT-L/16 at 512 gives 1,024 patches, a class token and 4 registers as the condition."""

SS_SMALL = dataclasses.replace(SS_XL, **SMALL, bs=8, grid=8, tokens=8**3, cap=8**3)

SIZES: dict[str, dict[str, FlowConfig]] = {
    SLAT: {"small": SLAT_SMALL, "xl": SLAT_XL},
    SS: {"small": SS_SMALL, "xl": SS_XL},
}
"""By workload and size."""

FROM_GRID = ("profile", "tokens", "cap", "lengths_seed")
"""What follows from the grid where every sample fills it, and cannot be set there."""
