"""The same model at reduced depth and length: what gradients are compared on.

Truth in fp64 of 1.3 B parameters fits no device, and nothing in the error of a gradient of one
block needs thirty of them. Width, heads and dtypes stay as they are.
"""

from __future__ import annotations

import dataclasses

from experiments.workloads.flow.config import FlowConfig

DEPTH = 2
TOKENS = 2222
SAMPLES = 2
COND_TOKENS = 64
LEAST_GRID = 10
LARGEST_GRID = 16


def reduced(config: FlowConfig) -> FlowConfig:
    """At most two blocks, two samples and 64 condition tokens; nothing frozen or recomputed.

    Packed samples are as long as the median of the published data, also where the timed step's are
    shorter: the error of a sum in bf16 grows with its length. Dense ones fill a grid of at least
    about half as many. A step of several micro-batches keeps two, of one sample.
    """
    several = config.accumulate > 1
    small = dataclasses.replace(
        config,
        depth=min(config.depth, DEPTH),
        bs=1 if several else min(config.bs, SAMPLES),
        accumulate=SAMPLES if several else 1,
        cond_tokens=min(config.cond_tokens, COND_TOKENS),
        checkpointed=0,
        frozen=0,
    )
    if config.dense:
        grid = min(max(config.grid, LEAST_GRID), LARGEST_GRID)
        return dataclasses.replace(small, grid=grid, tokens=grid**3, cap=grid**3)
    return dataclasses.replace(small, profile="measured", tokens=TOKENS // 2, cap=TOKENS)
