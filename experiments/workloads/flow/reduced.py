"""The same model at reduced depth and length: what gradients are compared on.

Truth in fp64 of 1.3 B parameters fits no device, and nothing in the error of a gradient of one
block needs thirty of them. Width, heads and dtypes stay as they are.
"""

from __future__ import annotations

import dataclasses

from experiments.workloads.flow.config import SlatConfig

DEPTH = 2
TOKENS = 2222
SAMPLES = 2
COND_TOKENS = 64


def reduced(config: SlatConfig) -> SlatConfig:
    """At most two blocks, two samples and 64 condition tokens; nothing frozen or recomputed.

    The samples are as long as the median of the published data, also where the timed step's are
    shorter: the error of a sum in bf16 grows with its length.
    """
    return dataclasses.replace(
        config,
        depth=min(config.depth, DEPTH),
        bs=min(config.bs, SAMPLES),
        cond_tokens=min(config.cond_tokens, COND_TOKENS),
        profile="measured",
        tokens=TOKENS // 2,
        cap=TOKENS,
        checkpointed=0,
        frozen=0,
    )
