"""Where and with what a run is made, found without torch: device, driver, versions, boot, commit.

NVML is asked for CUDA devices; torch's own version is read from its metadata. The parent process
that asks never creates a CUDA context and never imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import os
import platform
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.checkout import commit
from experiments.records import Environment
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from levers.errors import BadParameter

PACKAGES = ("torch", "triton", "numpy", "flash-attn", "nvidia-cuda-runtime", "nvidia-cudnn-cu13")
"""Distributions that a verdict is bound to; one that is not installed is left out."""

DEVICES = "devices"
"""The fact that names the devices of all ranks, where there are several."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can be measured: its facts, and how processes and locks name it.

    ``peers`` are the devices of the other ranks of an arm, of the same kind; on a CPU all ranks
    share the one device.
    """

    facts: DeviceFacts
    uuid: str
    driver: str = ""
    peers: tuple[Device, ...] = ()

    @property
    def is_cuda(self) -> bool:
        """Whether NVML knows it."""
        return self.facts.device_type == "cuda"

    @property
    def uuids(self) -> tuple[str, ...]:
        """Of the devices of all ranks, this one first."""
        return (self.uuid, *(peer.uuid for peer in self.peers))


def find_device(
    name: str | None,
    nvml: ModuleType | Any | None = None,
    visible: str | None = None,
    ranks: int = 1,
) -> Device:
    """The device of that name: ``cpu``, ``cuda``, ``cuda:N`` or a GPU's UUID; None takes the best.

    Several ranks take the GPUs that follow it as well, one each; a CPU they share.

    Raises:
        BadParameter: there is no such device, or too few; the message names those that were found.
    """
    gpus = cuda_devices(nvml, visible)
    if name == "cpu" or (name is None and not gpus):
        return _shared(cpu_device(), ranks)
    wanted = "cuda:0" if name in (None, "cuda") else str(name)
    for gpu in gpus:
        if wanted in (gpu.facts.device, gpu.uuid):
            return _first_of(gpu, gpus, ranks)
    found = ", ".join(["cpu", *(f"{gpu.facts.device} ({gpu.facts.kind})" for gpu in gpus)])
    raise BadParameter(f"no device {name!r} on this machine", cure=f"found: {found}")


MOST_CPU_RANKS = 16
"""Ranks that may share a CPU: beyond this nothing but their waiting for each other is measured."""


def _shared(cpu: Device, ranks: int) -> Device:
    if ranks > MOST_CPU_RANKS:
        raise BadParameter(
            f"{ranks} ranks cannot share one CPU", cure=f"use --ranks {MOST_CPU_RANKS} or fewer"
        )
    return cpu


def _first_of(gpu: Device, gpus: tuple[Device, ...], ranks: int) -> Device:
    """The GPU with those of the other ranks beside it."""
    there = gpus[gpus.index(gpu) :]
    if len(there) < ranks:
        raise BadParameter(
            f"{ranks} ranks need {ranks} GPUs from {gpu.facts.device} on, found {len(there)}",
            cure=f"use --ranks {len(there)}, or another --device",
        )
    peers = there[1:ranks]
    for peer in peers:
        if peer.facts.kind != gpu.facts.kind:
            raise BadParameter(
                f"{peer.facts.device} is a {peer.facts.kind}, {gpu.facts.device} a "
                f"{gpu.facts.kind}: ranks on different devices wait for the slower",
                cure="show only GPUs of one kind, in CUDA_VISIBLE_DEVICES",
            )
    return replace(gpu, peers=peers)


def cpu_device() -> Device:
    """The host's processors as one device; its kind is the processor's model name."""
    import psutil

    memory = psutil.virtual_memory().total
    facts = DeviceFacts("cpu", cpu_model(), memory)
    return Device(facts, f"cpu-{socket.gethostname()}")


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name as the kernel reports it."""
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cuda_devices(
    nvml: ModuleType | Any | None = None, visible: str | None = None
) -> tuple[Device, ...]:
    """The GPUs that NVML sees; empty where there is no driver.

    Args:
        nvml: stands in for the library in tests.
        visible: value of ``CUDA_VISIBLE_DEVICES`` (indices or UUIDs); None shows all. ``cuda:N``
            then counts the visible ones, as it does in the user's own program.
    """
    with nvml_session(nvml) as api:
        if api is None:
            return ()
        driver = _text(api.nvmlSystemGetDriverVersion())
        count = api.nvmlDeviceGetCount()
        handles = [api.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        return tuple(
            _gpu(api, handle, f"cuda:{number}", driver)
            for number, handle in enumerate(_visible(api, handles, visible))
        )


def _visible(api: Any, handles: list[Any], visible: str | None) -> list[Any]:
    if visible is None:
        return handles
    uuids = [_text(api.nvmlDeviceGetUUID(handle)) for handle in handles]
    shown = []
    for name in filter(None, (part.strip() for part in visible.split(","))):
        for index, uuid in enumerate(uuids):
            if name == str(index) or (name.startswith("GPU-") and uuid.startswith(name)):
                shown.append(handles[index])
    return shown


@contextlib.contextmanager
def nvml_session(nvml: ModuleType | Any | None = None) -> Iterator[Any]:
    """NVML while the block runs, or None where its library or the driver is missing."""
    if nvml is None and not _has_nvml():
        yield None
        return
    api: Any = nvml or importlib.import_module("pynvml")
    try:
        api.nvmlInit()
    except api.NVMLError:
        yield None
        return
    try:
        yield api
    finally:
        api.nvmlShutdown()


def _has_nvml(library: str = "libnvidia-ml.so.1") -> bool:
    """Whether there is a driver's library at all, asked as pynvml does, which is slow to import."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _gpu(api: Any, handle: Any, name: str, driver: str) -> Device:
    facts = DeviceFacts(
        device=name,
        kind=_text(api.nvmlDeviceGetName(handle)),
        memory_bytes=int(api.nvmlDeviceGetMemoryInfo(handle).total),
        sm_count=_sm_count(api, handle),
        compute_capability=tuple(api.nvmlDeviceGetCudaComputeCapability(handle)),
    )
    return Device(facts, _text(api.nvmlDeviceGetUUID(handle)), driver)


CORES_PER_SM = {6: 64, 7: 64, 8: 128, 9: 128, 10: 128, 12: 128}
"""fp32 cores per multiprocessor by compute capability (CUDA C++ Programming Guide, table of
arithmetic throughput); 6.1 and 8.0 differ and are named in :data:`CORES_PER_SM_EXACT`."""

CORES_PER_SM_EXACT = {(6, 1): 128, (6, 2): 128, (8, 0): 64}


def _sm_count(api: Any, handle: Any) -> int:
    """Multiprocessors, from NVML's number of cores: NVML does not report them as such."""
    major, minor = api.nvmlDeviceGetCudaComputeCapability(handle)
    per_sm = CORES_PER_SM_EXACT.get((major, minor), CORES_PER_SM.get(major, 128))
    try:
        return int(api.nvmlDeviceGetNumGpuCores(handle)) // per_sm
    except api.NVMLError:
        return 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def versions(packages: Collection[str]) -> Mapping[str, str]:
    """Of distributions, from their metadata; one that is not installed is left out."""
    said = {package: package_version(package) for package in packages}
    return {package: version for package, version in said.items() if version}


def package_version(package: str) -> str:
    """Of an installed distribution; empty where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def stack_versions(driver: str = "") -> Mapping[str, str]:
    """What a verdict is bound to: the versions, and the driver where a device has one."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    found |= versions(PACKAGES)
    return {**found, "driver": driver} if driver else found


def driver_now() -> str:
    """The driver of this machine's GPUs; empty where there is none."""
    gpus = cuda_devices()
    return gpus[0].driver if gpus else ""


def device_kinds() -> tuple[str, ...]:
    """The kinds of device on this machine, as verdicts name them."""
    return (cpu_model(), *dict.fromkeys(gpu.facts.kind for gpu in cuda_devices()))


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """What tells this boot from the next; empty where the kernel does not say."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def describe(
    device: Device,
    variables: Mapping[str, str],
    removed: Mapping[str, str],
    facts: Mapping[str, Scalar],
    packages: Collection[str] = (),
) -> Environment:
    """The environment record of a run on this device.

    Args:
        device: what is measured.
        variables: the recorded part of the frozen environment (see :mod:`experiments.frozen`).
        removed: what the frozen environment left out of the caller's.
        facts: what else was found: cores, load at the start, the arms' kill switches.
        packages: distributions that this run is bound to beside those of every run.
    """
    import psutil

    head, dirty = commit()
    return Environment(
        device_kind=device.facts.kind,
        device_uuid=device.uuid,
        device_type="cuda" if device.is_cuda else "cpu",
        host=socket.gethostname(),
        boot_id=boot_id(),
        versions={**stack_versions(device.driver), **versions(packages)},
        commit=head,
        dirty=dirty,
        cpu_count=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        device_memory_bytes=device.facts.memory_bytes if device.is_cuda else 0,
        sm_count=device.facts.sm_count,
        variables=variables,
        removed_variables=removed,
        facts={**facts, DEVICES: " ".join(device.uuids)} if device.peers else facts,
    )
