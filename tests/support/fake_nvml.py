"""NVML as the probes see it, with GPUs that a test can heat, slow down and share."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace


@dataclass
class Gpu:
    uuid: str
    name: str = "NVIDIA H200"
    memory_bytes: int = 141 << 30
    used_bytes: int = 1 << 30
    sm_mhz: int = 1980
    max_mhz: int = 1980
    application_mhz: int = 1980
    power_mw: int = 300_000
    temperature_c: int = 50
    utilisation: int = 90
    throttles: int = 0
    processes: list[int] = field(default_factory=list)


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, *gpus: Gpu, driver: bool = True) -> None:
        self.gpus = list(gpus)
        self._driver = driver

    def nvmlInit(self) -> None:  # noqa: N802
        if not self._driver:
            raise self.NVMLError("no driver")

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:  # noqa: N802
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:  # noqa: N802
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:  # noqa: N802
        return gpu.uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(
            total=gpu.memory_bytes, used=gpu.used_bytes, free=gpu.memory_bytes - gpu.used_bytes
        )

    def nvmlDeviceGetCudaComputeCapability(self, gpu: Gpu) -> tuple[int, int]:  # noqa: N802
        return (9, 0)

    def nvmlDeviceGetNumGpuCores(self, gpu: Gpu) -> int:  # noqa: N802
        return 132 * 128

    def nvmlDeviceGetMaxClockInfo(self, gpu: Gpu, kind: int) -> int:  # noqa: N802
        return gpu.max_mhz

    def nvmlDeviceGetClockInfo(self, gpu: Gpu, kind: int) -> int:  # noqa: N802
        return gpu.sm_mhz if kind == 1 else 3201

    def nvmlDeviceGetApplicationsClock(self, gpu: Gpu, kind: int) -> int:  # noqa: N802
        return gpu.application_mhz

    def nvmlDeviceGetPowerUsage(self, gpu: Gpu) -> int:  # noqa: N802
        return gpu.power_mw

    def nvmlDeviceGetTemperature(self, gpu: Gpu, sensor: int) -> int:  # noqa: N802
        return gpu.temperature_c

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=gpu.utilisation, memory=0)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Gpu) -> int:  # noqa: N802
        return gpu.throttles

    def nvmlDeviceGetComputeRunningProcesses(  # noqa: N802
        self, gpu: Gpu
    ) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in gpu.processes]
