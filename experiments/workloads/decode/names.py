"""The names of the decode sites, and of the axes that several modules build (torch-free)."""

from __future__ import annotations

ADD_NORM = "decode.add_norm"
QK_NORM_ROPE = "decode.qk_norm_rope"
SWIGLU = "decode.swiglu"
LINEAR = "decode.linear"
WEIGHTS = "decode.weights"
BLOCK = "decode.block"
ATTENTION = "decode.attention"
SPLIT_RULE = "decode.attention.split_rule"
"""The site whose callable maps a launch's shape to its number of KV splits, over pages."""
SPLIT_RULE_CONTIGUOUS = "decode.attention.split_rule_contiguous"
"""The same at the launch over the contiguous cache."""
STEP = "decode.step"

SITES = (
    ADD_NORM,
    QK_NORM_ROPE,
    SWIGLU,
    LINEAR,
    WEIGHTS,
    BLOCK,
    ATTENTION,
    SPLIT_RULE,
    SPLIT_RULE_CONTIGUOUS,
    STEP,
)
"""Every site of the decoder; of the two split rules only that of the cache in use is asked."""


QUALITY = "quality/nll"
"""Mean loss of held-out text, teacher-forced, in nat a token."""
WEIGHT_BYTES = "memory/weights_bytes"
"""All weights as they are stored, a tied head counted once."""


def floor_fact(count: int) -> str:
    """The fact that states a decode step as a multiple of its bandwidth floor."""
    return f"decode/floor_ratio/c{count}"


def rate_axis(count: int) -> str:
    """The throughput axis of a concurrency."""
    return f"decode/tok_s/c{count}"
