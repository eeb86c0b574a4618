"""Names of the sites and axes; torch-free."""

from __future__ import annotations

from levers.policy import Axis

BROADCAST = "flow.broadcast"
MODULATE = "flow.modulate"
GATE_RESIDUAL = "flow.gate_residual"
QK_NORM_ROPE = "flow.qk_norm_rope"
ATTENTION = "flow.attention"
MLP = "flow.mlp"
MLP_HIDDEN = "flow.mlp_hidden"
AFFINE_NORM = "flow.affine_norm"
RESIDUAL_NORM = "flow.residual_norm"
LINEAR = "flow.linear"
CU_SEQLENS = "flow.cu_seqlens"
BLOCK = "flow.block"
MICRO_BATCHES = "flow.micro_batches"

SITES = (
    BROADCAST,
    MODULATE,
    GATE_RESIDUAL,
    QK_NORM_ROPE,
    ATTENTION,
    MLP,
    MLP_HIDDEN,
    AFFINE_NORM,
    RESIDUAL_NORM,
    LINEAR,
    CU_SEQLENS,
    BLOCK,
    MICRO_BATCHES,
)

TOK_S = Axis("train/tok_s", "tok/s", higher_is_better=True)
STEP_MS = Axis("train/step_ms", "ms", higher_is_better=False)
MFU_TRUE = Axis("train/mfu_true", "%", higher_is_better=True)
MFU_MATMUL = Axis("train/mfu_matmul", "%", higher_is_better=True)
PEAK_BYTES = Axis("memory/peak_bytes", "bytes", higher_is_better=False, deterministic=True)
WARMUP_S = Axis("compile/warmup_s", "s", higher_is_better=False)

AXES = (TOK_S, STEP_MS, MFU_TRUE, MFU_MATMUL, PEAK_BYTES, WARMUP_S)
