"""The environment that every measured process starts from, and what each arm adds to it.

It is the caller's environment without whatever could switch a lever or change what torch does:
kill switches of levers, MLflow's variables, torch's, Triton's and the math libraries' switches.
What was removed is recorded, and so is the value of each arm's kill switch; secrets never are.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from experiments.code_watch import CodeWatch
from experiments.environment import Device
from experiments.home import CHECKOUT
from experiments.spec import NO_LEVER, AbSpec, LeverSetting
from experiments.tasks import Task
from experiments.values import Scalar, digest_of
from experiments.workloads.base import DIGESTS_VARIABLE
from levers import catalog
from levers.base import OFF, Lever

REMOVED = re.compile(
    r"LEVER_|MLFLOW_|TORCH|PYTORCH_|TRITON_|CUBLAS|CUDNN_|CUDA_|NVIDIA_TF32|NCCL_|OMP_|GOMP_|KMP_|MKL_"
    r"|OPENBLAS_|ONEDNN_|DNNL_|MALLOC_|LD_PRELOAD$|PYTHONWARNINGS$|PYTHONHASHSEED$|PYTHONOPTIMIZE$"
    r"|PYTHONSTARTUP$|RANK$|LOCAL_RANK$|WORLD_SIZE$"
)
"""Variables that change what is measured, by the beginning of their names."""

KEPT = re.compile(
    r"(CUDA_HOME|CUDA_PATH|TORCH_HOME|TRITON_(PTXAS|CUOBJDUMP|NVDISASM|LIBCUDA)_PATH"
    r"|NCCL_NVLS_ENABLE|TORCH_SYMM_MEM_DISABLE_MULTICAST|NVSHMEM_DISABLE_NVLS)$"
)
"""Those that only say where a tool or a cache of downloads lies; and those that keep NVLink
multicast off where a host needs that: dropping them would switch it on."""

SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|KEY|URI|URL", re.IGNORECASE)
"""Variables whose values never reach a record."""

HASH_SEED = "0"
"""Of every measured process, so that the order of sets and of hashes is the same in both arms."""

ORACLES = "oracles"
"""The folder of the oracles' compile caches, beside that of the arms'."""

DIGESTS = "digests"
"""The folder of the digests of weights, beside those."""

MEMORY_SHARE = 0.9
"""Share of the memory free at the start that one measured process on the CPU may map: an arm that
wants more then gets an error of its own instead of the kernel's killer taking any process."""


@dataclass(frozen=True, slots=True)
class FrozenEnvironment:
    """What all measured processes of a run share.

    Attributes:
        variables: the whole base environment.
        removed: what was taken out of the caller's environment, secrets blanked.
        declared: names that the user asked to keep although they change what is measured.
        arms: per arm, its levers' kill switches as resolved, and the variables that they declare.
        caches: per arm, the key of its compile caches and whether they were warm or cold when this
            was frozen; empty where they are left alone.
        device: the device, as tasks name it.
        opener: the workload's opener, ``module:function``.
        threads: torch threads, or None where the workload does not say.
        measured_core: the one core of a single-threaded measured process, or None.
        other_cores: where the parent and the servers run meanwhile; empty leaves them alone.
        fresh_interpreter: why no process may be forked from a warm one; empty where it may.
        memory_limit_bytes: address space of a measured process on the CPU (of each rank), or None.
        arm_caches: folder of the compile caches, one below it per set of levers; the oracles' lie
            beside it.
        ranks: processes of one arm.
        watch: sees whether the code that they load changes; None where nobody looks.
    """

    variables: Mapping[str, str]
    device: Device
    opener: str
    removed: Mapping[str, str] = field(default_factory=dict)
    declared: tuple[str, ...] = ()
    arms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    caches: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    measured_core: int | None = None
    other_cores: tuple[int, ...] = ()
    fresh_interpreter: str = ""
    memory_limit_bytes: int | None = None
    arm_caches: Path | None = None
    ranks: int = 1
    watch: CodeWatch | None = field(default=None, compare=False)

    def recorded(self) -> dict[str, str]:
        """The variables that a record carries: those that could change what is measured."""
        mine = ("LEVERGATE_LEVERS", "LEVERGATE_WORKLOADS")
        return {
            name: value
            for name, value in sorted(self.variables.items())
            if (REMOVED.match(name) or name in mine) and not SECRET.search(name)
        }

    def facts(self) -> dict[str, Scalar]:
        """What the environment's record says beside the variables."""
        switches = {
            f"{arm}.{name}": value
            for arm, found in self.arms.items()
            for name, value in found.items()
        }
        return {
            "measured_core": self.measured_core,
            "threads": self.threads,
            "process_start": self.fresh_interpreter or "fork server",
            "declared_variables": ",".join(self.declared),
            **switches,
            **{f"{arm}.compile_cache": key for arm, key in self.caches.items()},
        }

    def additions(self, task: Task) -> dict[str, str]:
        """What a task's process gets beside the base: its levers' switches and variables, caches.

        A process without levers has no kill switch at all.
        """
        added: dict[str, str] = {}
        for one in task.levers:
            added.update(_lever_variables(catalog.get(one.lever), one.setting))
        if self.arm_caches is not None:
            added.update(_cache_variables(_cache_folder(self.arm_caches, task)))
            added[DIGESTS_VARIABLE] = str(self.arm_caches.with_name(DIGESTS))
        return added


def frozen_environment(
    spec: AbSpec,
    device: Device,
    opener: str,
    *,
    environ: Mapping[str, str],
    free_memory_bytes: int,
    cores: Collection[int],
    arm_caches: Path | None = None,
    declared: Collection[str] = (),
) -> FrozenEnvironment:
    """Freeze the caller's environment for this comparison.

    Args:
        spec: the comparison; its levers say whether a fork of a warm process is honest.
        device: where it runs; a GPU is selected by its UUID.
        opener: the workload's opener, ``module:function``.
        environ: the caller's variables.
        free_memory_bytes: host memory free now.
        cores: the cores that this process may use.
        arm_caches: folder for the arms' compile caches.
        declared: variables to keep although they change what is measured.
    """
    kept, removed = _split(environ, declared)
    threads = _threads(spec)
    measured, others = _cores(threads, sorted(cores)) if spec.ranks == 1 else (None, ())
    of_tokens = (one for model in spec.tokens_on for one in model.levers)
    on = (*spec.stack, *of_tokens, LeverSetting(lever=spec.lever, setting=spec.cand))
    return FrozenEnvironment(
        variables={**kept, **_fixed(device, threads, environ)},
        device=device,
        opener=opener,
        removed=removed,
        declared=tuple(sorted(set(declared) & set(kept))),
        arms=_switches(spec),
        caches={} if arm_caches is None else _cache_states(spec, arm_caches),
        threads=threads,
        measured_core=measured,
        other_cores=others,
        fresh_interpreter=_why_fresh((*on, LeverSetting(lever=spec.lever, setting=spec.ref))),
        memory_limit_bytes=(
            None if device.is_cuda else int(free_memory_bytes * MEMORY_SHARE / spec.ranks)
        ),
        arm_caches=arm_caches,
        ranks=spec.ranks,
    )


def _split(
    environ: Mapping[str, str], declared: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    kept: dict[str, str] = {}
    removed: dict[str, str] = {}
    for name, value in environ.items():
        if REMOVED.match(name) and not KEPT.match(name) and name not in declared:
            removed[name] = "(not recorded)" if SECRET.search(name) else value
        else:
            kept[name] = value
    return kept, removed


def _fixed(device: Device, threads: int | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are the same in every measured process."""
    path = [str(CHECKOUT), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    fixed = {
        "PYTHONHASHSEED": HASH_SEED,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuids) if device.is_cuda else "",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if threads is not None:
        fixed |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return fixed


def _threads(spec: AbSpec) -> int | None:
    value = spec.parameters.get("threads")
    return int(value) if spec.device_type == "cpu" and value is not None else None


def _cores(threads: int | None, cores: list[int]) -> tuple[int | None, tuple[int, ...]]:
    """One core for a single-threaded measured process, the others for everything else of ours."""
    if threads != 1 or len(cores) < 2:
        return None, ()
    return cores[-1], tuple(cores[:-1])


def _switches(spec: AbSpec) -> dict[str, dict[str, str]]:
    stack: dict[str, str] = {}
    for one in spec.stack:
        stack |= _lever_variables(catalog.get(one.lever), one.setting)
    return {
        "ref": {**stack, **_own_variables(spec, spec.ref)},
        "cand": {**stack, **_own_variables(spec, spec.cand)},
    }


def _own_variables(spec: AbSpec, setting: str) -> dict[str, str]:
    """The tested lever's variables; an A/A tests none."""
    if spec.lever == NO_LEVER:
        return {}
    return _lever_variables(catalog.get(spec.lever), setting)


def _cache_states(spec: AbSpec, folder: Path) -> dict[str, str]:
    """Both arms' cache keys with their state: warm for one arm only is then there to be seen."""
    found = {}
    for arm, setting in (("ref", spec.ref), ("cand", spec.cand)):
        mine = LeverSetting(lever=spec.lever, setting=setting)
        key = _cache_key((*spec.stack, mine) if setting != OFF else spec.stack)
        warm = any(path.is_file() for path in (folder / key).rglob("*"))
        found[arm] = f"{key} {'warm' if warm else 'cold'}"
    return found


def _cache_key(levers: Collection[LeverSetting]) -> str:
    return digest_of(" ".join([sys.version, *map(str, levers)]))


def _why_fresh(settings: Collection[LeverSetting]) -> str:
    """Why these levers need a fresh interpreter for each process; empty where none does."""
    for one in settings:
        if one.lever == NO_LEVER:
            continue
        lever = catalog.get(one.lever)
        if lever.at_import:
            return f"{one.lever} changes something at import time"
        if one.setting != OFF and lever.environment(one.setting):
            return f"{one} needs variables from the start of its process"
    return ""


def _lever_variables(lever: Lever, setting: str) -> dict[str, str]:
    declared = {} if setting == OFF else dict(lever.environment(setting))
    return {**declared, lever.env: setting}


def _cache_folder(arm_caches: Path, task: Task) -> Path:
    """Compile caches of their own for each set of levers, so that none is warm for one arm only.

    An oracle has its own beside them, whatever concurrencies it is measured at: what the arms find
    does not depend on it, and it alone may be taken to another machine (its compiler's keys hold
    versions, device and shapes).
    """
    kind, _, oracle = task.implementation.partition(":")
    if kind != "oracle":
        return arm_caches / _cache_key(task.levers)
    return arm_caches.with_name(ORACLES) / digest_of(f"{sys.version} {oracle.partition(':')[0]}")


def _cache_variables(own: Path) -> dict[str, str]:
    return {
        "TRITON_CACHE_DIR": str(own / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
        "CUDA_CACHE_PATH": str(own / "cuda"),
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": str(own / "cute"),
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
    }
