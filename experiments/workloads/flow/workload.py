"""The torch-free description of the workload: parameters, axes, targets, needs."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts, Needs, Target
from experiments.workloads.flow.config import SlatConfig, resolve
from experiments.workloads.flow.figures import step_values
from experiments.workloads.flow.names import AXES, MFU_MATMUL, MFU_TRUE, SITES, STEP_MS, TOK_S
from experiments.workloads.flow.peaks import dense_peak_flop_per_s
from levers.errors import UnknownName
from levers.policy import Axis

ROOFLINE_SHARE = 0.9
"""Share of the step at the device's measured ceilings that counts as the hardware being used up."""

BYTES_PER_TRAINED_WEIGHT = 8
"""fp32 weight and gradient."""

BYTES_OF_ADAM = 8
"""Two fp32 moments of a weight."""

BYTES_PER_TOKEN_CHANNEL = 85
BYTES_PER_COND_TOKEN_CHANNEL = 31
"""Kept for the backward by a block, for each channel of a latent or condition token. Fitted to 45.4
and 111.1 GB at 7,464 and 19,812 tokens (2 and 8 samples, 30 blocks of 1,536 channels, H200, bf16).
"""

FP32_PRODUCTS_FACTOR = 1.5
"""fp32 operands of the products are kept beside bf16 (estimated, not measured)."""

PROCESS_BYTES = 500_000_000
"""Resident size of a process with torch."""

CPU_FLOP_PER_S = 15e9
"""What a narrow step reaches on one shared core, row-wise work included (measured: 12 to 30)."""

CUDA_SHARE_OF_PEAK = 0.08
"""The reference step's share of the peak at 1.3 B (measured: 11.7 %)."""

UNKNOWN_PEAK_FLOP_PER_S = 100e12
START_S = 12.0
"""Seconds to start a process on CUDA: torch, context, weights, first kernels."""


class SlatFlowWorkload:
    """Packed-sequence flow training (see :class:`experiments.workloads.base.Workload`)."""

    name = "slat_flow"
    summary = "packed-sequence flow training step (SLAT); small on a CPU, 1.3 B at size=xl"
    opener = "experiments.workloads.flow.session:open_session"
    oracles = ("roofline",)
    checks = (
        "op",
        "determinism",
        "loss",
        "loss-truth",
        "memcheck",
        "smoke",
        "rollback",
        "stack",
    )

    def resolve(self, requested: Mapping[str, str], device: DeviceFacts) -> Mapping[str, Scalar]:
        """All parameters, with the defaults of ``size`` and ``auto`` resolved for the device."""
        return resolve(requested, device.device_type).scalars()

    def axes(self, parameters: Mapping[str, Scalar]) -> tuple[Axis, ...]:
        """Throughput, step time, both utilisations, peak memory, warm-up; always the same."""
        del parameters
        return AXES

    def targets(self, parameters: Mapping[str, Scalar], oracle: str | None) -> tuple[Target, ...]:
        """0.9 of what the step would reach at the measured ceilings, without which none is set."""
        del parameters
        if oracle is None:
            return ()
        timed = (TOK_S, STEP_MS, MFU_TRUE, MFU_MATMUL)
        return tuple(Target(axis.name, "roofline", ROOFLINE_SHARE) for axis in timed)

    def sites(self, parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
        """The slots of the step."""
        del parameters
        return SITES

    def needs(self, parameters: Mapping[str, Scalar], device: DeviceFacts) -> Needs:
        """Memory and time of a sample, from the shapes."""
        config = SlatConfig.of(parameters)
        memory = _memory_bytes(config)
        on_cuda = device.device_type == "cuda"
        return Needs(
            device_memory_bytes=memory if on_cuda else 0,
            host_memory_bytes=PROCESS_BYTES + (4 * PROCESS_BYTES if on_cuda else memory),
            disk_bytes=1_000_000,
            seconds_per_sample=_seconds(config, device),
        )

    def oracle_mode(self, parameters: Mapping[str, Scalar], oracle: str) -> str:
        """How the roofline is measured.

        Raises:
            UnknownName: another oracle.
        """
        if oracle not in self.oracles:
            raise UnknownName("oracle of slat_flow", oracle, self.oracles)
        return f"measured {parameters['matmul']} matmul and attention ceilings"

    def impossible(
        self, parameters: Mapping[str, Scalar], device: DeviceFacts
    ) -> Mapping[str, float]:
        """The values of a step at the stated peak; empty where the device states none."""
        config = SlatConfig.of(parameters)
        peak = dense_peak_flop_per_s(device.kind) if device.device_type == "cuda" else None
        if peak is None or config.matmul != "bf16":
            return {}
        return step_values(config, config.flop.total_flop / peak, peak)


def _memory_bytes(config: SlatConfig) -> int:
    weights = config.parameter_count
    per_weight = BYTES_PER_TRAINED_WEIGHT + (BYTES_OF_ADAM if config.optimizer == "adamw" else 0)
    kept_blocks = max(1, config.depth - config.checkpointed)
    per_channel = (
        BYTES_PER_TOKEN_CHANNEL * sum(config.lengths)
        + BYTES_PER_COND_TOKEN_CHANNEL * config.bs * config.cond_tokens
    )
    factor = FP32_PRODUCTS_FACTOR if config.matmul == "fp32" else 1.0
    return int(weights * per_weight + factor * per_channel * config.channels * kept_blocks)


def _seconds(config: SlatConfig, device: DeviceFacts) -> float:
    flop = config.flop.total_flop * (config.steps + config.warmup)
    if device.device_type == "cpu":
        return flop / CPU_FLOP_PER_S
    peak = dense_peak_flop_per_s(device.kind) or UNKNOWN_PEAK_FLOP_PER_S
    return START_S + flop / (CUDA_SHARE_OF_PEAK * peak)


SLAT_FLOW = SlatFlowWorkload()
