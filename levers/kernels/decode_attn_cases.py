"""The cases of the op check of the decode attention's backends.

The reference is the attention that the workload has by itself (our Triton kernel on CUDA, the plain
form on a CPU), with the split count of its rule; for the Triton kernel it is the plain form. The
candidate runs with the count of its own rule. Caches are paged, of a page that both arms read, and
contiguous.

Slots that no sequence uses hold NaN for our kernels. The libraries load whole tiles and weigh what
is beyond a length by zero, which a NaN outlives; there such slots hold a large finite value, which
a weight other than zero would show. How a library treats NaN or infinity inside a cache is its own
affair and no case here; our kernels' cases have them (:mod:`levers.kernels.split_kv_cases`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from levers.base import OpCase
from levers.kernels.decode_attn import attention_by
from levers.kernels.split_heuristic import upstream_splits
from levers.kernels.split_kv_cases import (
    CPU_SM_COUNT,
    KV_HEADS,
    PAGE,
    SplitCase,
    Tensors,
    cancelling,
    large_means,
    peaked,
)

LIBRARIES = ("fa2", "fa3")
UNUSED = 3e4
"""What slots beyond a length hold for the libraries; finite in bf16."""
LIBRARY_PAGE = 256
"""Slots of a page that flash-attention 2 reads; the plain form takes whole pages of one block."""


def op_cases(setting: str, device: str) -> Sequence[OpCase]:
    """The cases of one backend on a device; at most 12, so that each can run under a sanitizer."""
    on_cuda = torch.device(device).type == "cuda"
    sms = torch.cuda.get_device_properties(device).multi_processor_count if on_cuda else 0
    capacity, dim = (2048, 128) if on_cuda else (512, 32)
    make = partial(
        SplitCase,
        head_dim=dim,
        capacity=capacity,
        dtype=torch.bfloat16 if on_cuda else torch.float32,
        device=device,
        sm_count=sms or CPU_SM_COUNT,
        page=LIBRARY_PAGE if setting in LIBRARIES else PAGE,
        unused=UNUSED if setting in LIBRARIES else math.nan,
    )
    ragged = (capacity, 1, 130, capacity - 129)
    cases = {
        "one token": make(lengths=(1,), group=2),
        "cap-long c1, 2 q heads a kv head": make(lengths=(capacity,), group=2),
        "cap-long c1, 4 q heads a kv head": make(lengths=(capacity,), group=4),
        "ragged, 1 q head a kv head": make(lengths=ragged, group=1),
        "ragged, 2 q heads a kv head": make(lengths=ragged, group=2),
        "ragged, 4 q heads a kv head": make(lengths=ragged, group=4),
        "contiguous, ragged, 4 q heads": make(lengths=ragged, group=4, page=capacity),
        "contiguous, block edges": make(lengths=(127, 128, 129, 256), group=2, page=capacity),
        "long c8": make(lengths=tuple(capacity - 11 * i for i in range(8)), group=2),
        "large means": make(lengths=ragged[:2], group=2, fill=large_means),
        "cancelling": make(lengths=ragged[:2], group=2, fill=cancelling),
        "peaked": make(lengths=ragged[:2], group=2, fill=peaked),
    }
    return tuple(_case(name, setting, case) for name, case in cases.items())


def _case(name: str, setting: str, case: SplitCase) -> OpCase:
    """One case of the workload's own attention against a backend."""
    on_cuda = torch.device(case.device).type == "cuda"
    own = "triton" if on_cuda and setting != "triton" else "torch"
    found = upstream_splits(case.shape)
    splits = upstream_splits(replace(case.shape, backend=setting))
    return OpCase(
        name=f"{name}, {str(case.dtype).removeprefix('torch.')}",
        inputs=case.inputs,
        outputs=case.outputs,
        reference=partial(_attend, case, own, found),
        candidate=partial(_attend, case, setting, splits),
        truth=case.truth,
        elements=len(case.lengths) * KV_HEADS * case.group * case.head_dim,
        reorderings=case.reorderings(found),
    )


def _attend(case: SplitCase, backend: str, splits: int, inputs: Tensors, outputs: Tensors) -> None:
    """The attention by a backend, which is imported when it is needed."""
    launch: Callable[..., int] = attention_by(backend)
    case.attend_by(launch, splits, inputs, outputs)
