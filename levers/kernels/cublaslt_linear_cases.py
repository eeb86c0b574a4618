"""The cases of the op check of the Linear with measured algorithms.

They are those of :mod:`.linear_grads_cases`, since both levers must give the same; only the
candidate differs. On CUDA the one with fp32 products whose result is rounded to 16 bits is left
out: the library has no such product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from levers.base import OpCase
from levers.kernels import linear_grads_cases
from levers.kernels.cublaslt_linear import TunedLinears
from levers.kernels.linear_grads_cases import LinearCase

Tensors = tuple[Tensor, ...]


def candidate(case: LinearCase, how: Mapping[str, bool], inputs: Tensors, outputs: Tensors) -> None:
    """Our Linear over the case's original."""
    found = case.compute(TunedLinears(case.original, **how), inputs)
    for room, one in zip(outputs, found, strict=True):
        room.copy_(one)


def case_of(shared: OpCase) -> LinearCase:
    """The case whose methods an op case is made of."""
    case = getattr(shared.inputs, "__self__", None)
    assert isinstance(case, LinearCase)
    return case


def op_cases(device: str, **how: bool) -> Sequence[OpCase]:
    """All cases for a device; ``how`` as in :class:`.cublaslt_linear.TunedLinears`."""
    cuda = torch.device(device).type == "cuda"
    found = []
    for shared in linear_grads_cases.op_cases(device):
        case = case_of(shared)
        if case.autocast or not cuda:
            found.append(replace(shared, candidate=partial(candidate, case, how)))
    return tuple(found)
