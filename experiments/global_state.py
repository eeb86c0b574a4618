"""What a process shares beyond its sites: variables and torch's flags, so that a leak is named."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from levers.base import Site


class _Unset:
    def __repr__(self) -> str:
        return "(unset)"


SET_BY_LIBRARIES = frozenset(
    {
        "TORCHINDUCTOR_CACHE_DIR",
        "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
        "TRITON_CACHE_DIR",
        "TRITON_PTXAS_PATH",
        "CUDA_MODULE_LOADING",
        "KINETO_LOG_LEVEL",
    }
)
"""Variables that torch sets for itself the first time a part of it is used; no arm's doing."""

READ_ONCE = re.compile(
    r"os\.environ\[(CUBLAS|CUDA_|NVIDIA_TF32|PYTORCH_(CUDA_)?ALLOC_CONF|PYTORCH_NO_CUDA_MEMORY"
    r"|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|NCCL_|MALLOC_|LD_PRELOAD\]|PYTHONHASHSEED\])"
)
"""Variables, as a change names them, that a library reads when it is loaded or first used.

``CUBLAS_WORKSPACE_CONFIG`` is one: torch's notes on reproducibility ask for it before the start.
"""

UNSET = _Unset()
"""The value of a name that is not there."""


@dataclass(frozen=True, slots=True)
class GlobalState:
    """Values by name; two of them are compared, never restored."""

    values: Mapping[str, object]

    def changed(self, later: GlobalState) -> tuple[str, ...]:
        """The names whose values are not those of this state, with both values where short."""
        names = sorted({*self.values, *later.values})
        differ = []
        for name in names:
            before, after = self.values.get(name, UNSET), later.values.get(name, UNSET)
            if before is not after and before != after:
                differ.append(f"{name}: {_short(before)} -> {_short(after)}")
        return tuple(differ)


def take(sites: Mapping[str, Site]) -> GlobalState:
    """The state now: environment variables, torch's flags, and what each site launches."""
    values = dict(variables().values)
    values |= {f"site {name}": _Identity(site.launch) for name, site in sites.items()}
    values |= _torch_flags()
    return GlobalState(values)


def variables() -> GlobalState:
    """The environment variables now, without those that torch sets for itself."""
    return GlobalState(
        {
            f"os.environ[{name}]": value
            for name, value in os.environ.items()
            if name not in SET_BY_LIBRARIES
        }
    )


class _Identity:
    """Compares by identity: a site must hold the very object that was found."""

    def __init__(self, found: object) -> None:
        self.found = found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.found is other.found

    def __hash__(self) -> int:
        return id(self.found)

    def __repr__(self) -> str:
        return getattr(self.found, "__qualname__", type(self.found).__name__)


def _torch_flags() -> dict[str, object]:
    import torch

    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    flags: dict[str, object] = {
        "torch.backends.cuda.matmul.allow_tf32": matmul.allow_tf32,
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
            matmul.allow_bf16_reduced_precision_reduction
        ),
        "torch.float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.default_dtype": torch.get_default_dtype(),
        "torch.num_threads": torch.get_num_threads(),
        "torch.grad_enabled": torch.is_grad_enabled(),
        "torch.inference_mode": torch.is_inference_mode_enabled(),
        "torch.default_device": str(torch.get_default_device()),
        "torch.backends.cudnn.allow_tf32": cudnn.allow_tf32,
        "torch.backends.cudnn.benchmark": cudnn.benchmark,
        "torch.backends.cudnn.deterministic": cudnn.deterministic,
        "torch.backends.cudnn.enabled": cudnn.enabled,
        "torch.flush_denormal": _flushes_denormals(torch),
    }
    for device in ("cpu", "cuda"):
        flags[f"torch.autocast.{device}"] = torch.is_autocast_enabled(device)
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        enabled = getattr(torch.backends.cuda, f"{name}_sdp_enabled", None)
        if enabled is not None:
            flags[f"torch.backends.cuda.{name}_sdp"] = enabled()
    return flags


def _flushes_denormals(torch: Any) -> bool:
    """Whether a subnormal sum is flushed to zero: torch can set this mode but not report it."""
    smallest = torch.tensor([1e-45], dtype=torch.float32)
    return bool((smallest * 1.0).item() == 0.0)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
