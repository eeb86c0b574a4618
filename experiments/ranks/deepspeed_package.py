"""The package DeepSpeed: how it is imported and configured here; no torch.

Importing it sets variables, imports MLflow and, later, looks for compilers; none of that is left or
done here, and none of its own kernels is built.

Sources: DeepSpeed 0.19.8 ``runtime/constants.py`` and ``runtime/zero/config.py`` (defaults),
``accelerator/real_accelerator.py``, ``autotuning/autotuner.py``, ``ops/__init__.py``,
``comm/torch.py`` (``build_shm_op``).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from experiments.spec import DEEPSPEED

BUCKET_ELEMENTS = 500_000_000
"""Gradients that are averaged at a time (DeepSpeed's default ``reduce_bucket_size``)."""

UNWANTED = ("mlflow", "pynvml")
"""MLflow, which its tuner imports, takes half of the time. With NVML it reads a device's memory by
an index that it takes from ``CUDA_VISIBLE_DEVICES``, where a rank's device is named by its UUID."""

COMPILED = f"{DEEPSPEED}.runtime.zero.muon.muon_optimizer"
"""An optimiser that nobody uses here, imported by the engine to compare types with it."""


def config(weights: int) -> dict[str, Any]:
    """The engine's configuration for so many trained weights.

    The batch size is for its own counting; how many micro-steps there are it is told at each one.
    """
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": {
            "stage": 1,
            "reduce_bucket_size": min(BUCKET_ELEMENTS, weights),
            "compute_grad_norm": False,
        },
        "timers": {"throughput": {"enabled": False}},
        "log_level": "error",
    }


def load(device_type: str) -> Any:
    """The package for that type of device, imported without what that does beside.

    Told the type, it does not look for devices. The one module whose functions it would compile
    later is imported while ``torch.compile`` does nothing, which spares the import of Inductor. An
    empty table of kernels that could be built keeps it from trying compilers, and on a CPU from
    building its own exchange through shared memory. Its all-gather goes by a name that PyTorch
    warns of.
    """
    with environment_kept(DS_ACCELERATOR=device_type, TORCHDYNAMO_DISABLE="1"), _absent(*UNWANTED):
        found = importlib.import_module(DEEPSPEED)
        ops: Any = importlib.import_module(f"{DEEPSPEED}.ops")
        importlib.import_module(COMPILED)
    ops.__compatible_ops__ = {}
    warnings.filterwarnings("ignore", ".*all_gather_into_tensor. is deprecated", FutureWarning)
    return found


@contextlib.contextmanager
def environment_kept(**meanwhile: str) -> Iterator[None]:
    """Variables that are set inside, and those given, are gone again afterwards."""
    before = dict(os.environ)
    os.environ.update(meanwhile)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _absent(*modules: str) -> Iterator[None]:
    """Importing those modules fails inside; one that was loaded before is there again after."""
    loaded = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(dict.fromkeys(modules))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(loaded)
