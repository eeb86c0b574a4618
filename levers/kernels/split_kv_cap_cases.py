"""The cases of the cap's op check: our kernel, and each library that is installed beside it.

Our kernel's cases are those of :mod:`levers.kernels.split_kv_cases`. A library is asked for its own
number of splits and for that of the setting, over pages and over a contiguous cache; slots beyond a
length hold a large finite value there (see :mod:`levers.kernels.decode_attn_cases`). Of ``tuned``
only backends with a table of the device have cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from levers.base import OpCase
from levers.kernels import split_kv_cases
from levers.kernels.decode_attn import attention_by
from levers.kernels.decode_attn_cases import LIBRARIES, LIBRARY_PAGE, UNUSED
from levers.kernels.decode_attn_needs import missing_package
from levers.kernels.split_heuristic import upstream_splits
from levers.kernels.split_kv_cases import KV_HEADS, SplitCase
from levers.kernels.split_kv_rules import TUNED, chosen_splits
from levers.kernels.tuned_splits import DEFAULT_BACKEND, has_table, table_of

CAPACITY, HEAD_DIM = 2048, 128
OTHER_COUNTS = (1, 3)
"""Other orders of a library's sum: it may choose any number of splits by itself."""
HOPPER = 9
"""Major compute capability that FlashAttention-3 is built for."""


def op_cases(setting: str, device: str) -> Sequence[OpCase]:
    """All cases of a setting on a device.

    Raises:
        BadParameter: ``tuned`` where no backend that is there was measured.
    """
    if torch.device(device).type != "cuda":
        return split_kv_cases.op_cases(setting, device)
    name = torch.cuda.get_device_name(device)
    libraries = [library for library in LIBRARIES if _runs(library, device)]
    measured = [
        backend
        for backend in (DEFAULT_BACKEND, *libraries)
        if setting != TUNED or has_table(name, backend)
    ]
    if not measured:
        table_of(name, DEFAULT_BACKEND)
    cases: list[OpCase] = []
    for backend in measured:
        if backend == DEFAULT_BACKEND:
            cases += split_kv_cases.op_cases(setting, device)
        else:
            cases += _library_cases(backend, setting, device)
    return cases


def _runs(library: str, device: str) -> bool:
    """Whether a library is installed and has kernels for the device."""
    if missing_package(library):
        return False
    return library != "fa3" or torch.cuda.get_device_capability(device)[0] == HOPPER


def _library_cases(backend: str, setting: str, device: str) -> list[OpCase]:
    """Both GQA ratios, one long sequence and ragged ones, both caches."""
    make = partial(
        SplitCase,
        head_dim=HEAD_DIM,
        capacity=CAPACITY,
        dtype=torch.bfloat16,
        device=device,
        sm_count=torch.cuda.get_device_properties(device).multi_processor_count,
        unused=UNUSED,
    )
    ragged = (CAPACITY, 1, 130, CAPACITY - 129)
    cases = []
    for group in (2, 4):
        for label, lengths in (("cap-long c1", (CAPACITY,)), ("ragged", ragged)):
            for cache, page in (("pages", LIBRARY_PAGE), ("contiguous", CAPACITY)):
                name = f"{backend}, {label}, {group} q heads a kv head, {cache}, bfloat16"
                case = make(lengths=lengths, group=group, page=page)
                cases.append(_case(name, backend, setting, case))
    return cases


def _case(name: str, backend: str, setting: str, case: SplitCase) -> OpCase:
    """One case of a library's own number of splits against the setting's."""
    shape = replace(case.shape, backend=backend)
    found = upstream_splits(shape)
    chosen = chosen_splits(shape, setting, found, torch.cuda.get_device_name(case.device))
    launch: Callable[..., int] = attention_by(backend)
    return OpCase(
        name=name,
        inputs=case.inputs,
        outputs=case.outputs,
        reference=partial(case.attend_by, launch, found),
        candidate=partial(case.attend_by, launch, chosen),
        truth=case.truth,
        elements=len(case.lengths) * KV_HEADS * case.group * case.head_dim,
        reorderings=tuple(
            partial(case.attend_by, launch, count) for count in OTHER_COUNTS if count != found
        ),
    )
