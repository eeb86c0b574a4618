"""The bandwidth floor of a decode step: the bytes that it must read, at the device's copy rate.

A step reads every weight once, in the form in which it is stored, and the keys and values of each
sequence. Launches, activations and what is written are not in the floor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.model import LayerWeights, Weights

COPY_BYTES_PER_S = {"H200": 4.3e12}
"""Measured device-to-device copy (read and write together) by part of the device's name; on any
other device the rate is measured in the run."""
SMALLEST_COPY_BYTES, LARGEST_COPY_BYTES = 8 * 2**20, 256 * 2**20
"""The measured copy moves about what a step reads, so that both come from the same memory."""
COPIES = 3
"""Timed copies after one that touches the memory; the fastest counts."""


def stored_bytes(weights: Weights) -> int:
    """Bytes of all weights as they are stored, a tied head counted once."""
    own_head = 0 if weights.head_VC is weights.embed_VC else weights.head_VC.nbytes
    return weights.embed_VC.nbytes + own_head + _blocks_bytes(weights)


def read_bytes(weights: Weights) -> int:
    """Bytes of weights that a step reads; of a separate embedding only a few rows are."""
    return weights.head_VC.nbytes + _blocks_bytes(weights)


def kv_bytes(config: ModelConfig, tokens: float, dtype: torch.dtype) -> float:
    """Bytes of the keys and values of so many cached tokens, all layers together."""
    return config.kv_bytes_per_token / 2 * dtype.itemsize * tokens


def _blocks_bytes(weights: Weights) -> int:
    norms = weights.final_norm_C.nbytes
    return norms + sum(
        part.nbytes for layer in weights.layers for part in (*layer.matrices, *_norms(layer))
    )


def _norms(layer: LayerWeights) -> Iterator[Tensor]:
    yield from (layer.input_norm_C, layer.post_norm_C, *(layer.qk_norms or ()))


def copy_rate(device: torch.device, size_bytes: int) -> float:
    """Bytes per second that a copy of about ``size_bytes`` moves, reads and writes together."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for part, rate in COPY_BYTES_PER_S.items():
            if part in name:
                return rate
    size = min(max(size_bytes, SMALLEST_COPY_BYTES), LARGEST_COPY_BYTES)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = source.clone()
    return 2 * size / min(_copy_s(source, target) for _ in range(1 + COPIES))


def _copy_s(source: Tensor, target: Tensor) -> float:
    if source.is_cuda:
        torch.cuda.synchronize(source.device)
    start = time.perf_counter()
    target.copy_(source)
    if source.is_cuda:
        torch.cuda.synchronize(source.device)
    return time.perf_counter() - start
