"""From the seconds of a step to the values of the axes."""

from __future__ import annotations

from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.names import MFU_MATMUL, MFU_TRUE, STEP_MS, TOK_S


def step_values(config: FlowConfig, seconds: float, peak_flop_per_s: float) -> dict[str, float]:
    """Throughput, step time and both utilisations (in percent) of a step of that length."""
    flop = config.flop
    return {
        TOK_S.name: sum(config.lengths) / seconds,
        STEP_MS.name: 1e3 * seconds,
        MFU_TRUE.name: 100 * flop.mfu_true(seconds, peak_flop_per_s),
        MFU_MATMUL.name: 100 * flop.mfu_matmul(seconds, peak_flop_per_s),
    }
