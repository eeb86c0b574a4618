"""The torch-free description of both flow workloads: parameters, axes, targets, needs."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts, Needs, Target
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.figures import step_values
from experiments.workloads.flow.memory import step_bytes
from experiments.workloads.flow.names import AXES, MFU_MATMUL, MFU_TRUE, SITES, STEP_MS, TOK_S
from experiments.workloads.flow.peaks import dense_peak_flop_per_s
from experiments.workloads.flow.resolving import resolve
from experiments.workloads.flow.sizes import SLAT, SS
from levers.errors import UnknownName
from levers.policy import Axis

ROOFLINE_SHARE = 0.9
"""Share of the step at the device's measured ceilings that counts as the hardware being used up."""

PROCESS_BYTES = 500_000_000
"""Resident size of a process with torch."""

CPU_FLOP_PER_S = 15e9
"""What a narrow step reaches on one shared core, row-wise work included (measured: 12 to 30)."""

CUDA_SHARE_OF_PEAK = 0.08
"""The reference step's share of the peak at 1.3 B (measured: 11.7 %)."""

UNKNOWN_PEAK_FLOP_PER_S = 100e12
START_S = 12.0
"""Seconds to start a process on CUDA: torch, context, weights, first kernels."""


COMPILE_LIMIT_S = 600.0
"""A process that first compiles the step is no hung one (on one shared CPU core: two minutes)."""

SLOWEST = 20.0
"""A process counts as hung at this multiple of its estimate, if that is more."""


class FlowWorkload:
    """A flow model's training (see :class:`experiments.workloads.base.Workload`)."""

    opener = "experiments.workloads.flow.session:open_session"
    oracles = ("roofline",)
    several_ranks = True
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

    def __init__(self, name: str, summary: str) -> None:
        self.name, self.summary = name, summary

    def resolve(self, requested: Mapping[str, str], device: DeviceFacts) -> Mapping[str, Scalar]:
        """All parameters, with the defaults of ``size`` and ``auto`` resolved for the device."""
        return resolve(requested, device.device_type, self.name).scalars()

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
        config = FlowConfig.of(parameters)
        memory, seconds = step_bytes(config), _seconds(config, device)
        on_cuda = device.device_type == "cuda"
        return Needs(
            device_memory_bytes=memory if on_cuda else 0,
            host_memory_bytes=PROCESS_BYTES + (4 * PROCESS_BYTES if on_cuda else memory),
            disk_bytes=1_000_000,
            seconds_per_sample=seconds,
            time_limit_s=max(COMPILE_LIMIT_S, SLOWEST * seconds),
        )

    def oracle_mode(self, parameters: Mapping[str, Scalar], oracle: str) -> str:
        """How the roofline is measured.

        Raises:
            UnknownName: another oracle.
        """
        if oracle not in self.oracles:
            raise UnknownName(f"oracle of {self.name}", oracle, self.oracles)
        return f"measured {parameters['matmul']} matmul and attention ceilings"

    def impossible(
        self, parameters: Mapping[str, Scalar], device: DeviceFacts
    ) -> Mapping[str, float]:
        """The values of a step at the stated peak; empty where the device states none."""
        config = FlowConfig.of(parameters)
        peak = dense_peak_flop_per_s(device.kind) if device.device_type == "cuda" else None
        if peak is None or config.matmul != "bf16":
            return {}
        return step_values(config, config.flop.total_flop / peak, peak)


def _seconds(config: FlowConfig, device: DeviceFacts) -> float:
    flop = config.flop.total_flop * (config.steps + config.warmup)
    if device.device_type == "cpu":
        return flop / CPU_FLOP_PER_S
    peak = dense_peak_flop_per_s(device.kind) or UNKNOWN_PEAK_FLOP_PER_S
    return START_S + flop / (CUDA_SHARE_OF_PEAK * peak)


SLAT_FLOW = FlowWorkload(
    SLAT, "packed-sequence flow training step (SLAT); small on a CPU, 1.3 B at size=xl"
)
SS_FLOW = FlowWorkload(
    SS, "dense flow training step (SS, 16^3 tokens a sample); small on a CPU, 1.3 B at size=xl"
)
